use super::*;
use proptest::prelude::*;

type Listed = (i64, i64, Vec<u8>);

fn encoded(due: i64, windows: &[Listed]) -> Vec<u8> {
    let mut list = vec![9; 3];
    WindowList::begin(due, &mut list);
    for (start, end, row) in windows {
        WindowList::push(&window_key(b"key", *start, *end), row, &mut list).unwrap();
    }
    list
}

fn decoded(bytes: &[u8]) -> Result<(i64, Vec<Listed>)> {
    let list = WindowList::parse(bytes)?;
    let windows = list.iter().map(|window| window.map(|(start, end, row)| (start, end, row.to_vec())));
    Ok((list.due, windows.collect::<Result<_>>()?))
}

#[test]
fn a_list_has_the_bytes_of_its_format() {
    let list = encoded(-1, &[(0, 5, vec![7, 8])]);
    let expected =
        [[0x7f, 255, 255, 255, 255, 255, 255, 255], [128, 0, 0, 0, 0, 0, 0, 0], [128, 0, 0, 0, 0, 0, 0, 5]].concat();
    assert_eq!(list, [&expected[..], &[2, 0, 0, 0, 7, 8]].concat());
}

proptest! {
    #[test]
    fn a_list_reads_back(due: i64, windows: Vec<(i64, i64, Vec<u8>)>) {
        prop_assert_eq!(decoded(&encoded(due, &windows)).unwrap(), (due, windows));
    }

    #[test]
    fn a_list_that_is_cut_is_corrupt(windows in prop::collection::vec(any::<(i64, i64, Vec<u8>)>(), 1..4), cut: prop::sample::Index) {
        let list = encoded(0, &windows);
        let cut = &list[..cut.index(list.len())];
        match decoded(cut) {
            Ok((_, found)) => prop_assert!(found.len() < windows.len()),
            Err(error) => prop_assert_eq!(error.kind(), fastchangelog_format::ErrorKind::Corrupt),
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        drop(decoded(&bytes));
    }
}
