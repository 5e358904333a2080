use super::*;

const LAYOUTS: [ListLayout; 2] = [ListLayout::Lasting, ListLayout::Ending];

#[test]
fn invariant_3_chunks_are_neither_small_nor_large() {
    let sizes = [0, 1, TAIL - 10, TAIL + 10, CHUNK - 10, CHUNK + 10, 3 * CHUNK];
    for old in [0, 1, TAIL] {
        for size in sizes {
            let tail = if old == 0 { vec![] } else { [&[1][..], &vec![7; old - 1]].concat() };
            let head = ListHeader { elements: u64::from(old > 0), chunks: 2, tail: &tail, ..ListHeader::default() };
            let mut update = ListUpdate::new(head, false);
            for _ in 0..3 {
                update.push(&[], &vec![1; size]);
            }
            let head = update.finish(ListLayout::Lasting).unwrap();
            let head = ListHeader::read(Some(&head), ListLayout::Lasting).unwrap();
            assert!(head.tail.len() <= TAIL, "old {old}, size {size}");
            assert_eq!((head.elements, head.chunks), (3 + u64::from(old > 0), 2 + update.spilled.len() as u64));
            for (_, chunk) in &update.spilled {
                let parts = chunk.len() / (size + 1).max(1);
                assert!(chunk.len() <= CHUNK || parts <= 1, "old {old}, size {size}: {}", chunk.len());
            }
        }
    }
}

#[test]
fn invariant_1_a_list_without_elements_has_no_head() {
    for layout in LAYOUTS {
        let mut update = ListUpdate::new(ListHeader::default(), false);
        assert_eq!(update.finish(layout), None);
        update.push(b"ends", b"");
        assert!(update.finish(layout).is_some());
        update.clear();
        assert_eq!(update.finish(layout), None);
    }
}

#[test]
fn chunks_of_a_replaced_list_go_unless_written_again() {
    let head = ListHeader { elements: 9, first: 3, chunks: 8, tail: &[] };
    let gone = |chunks: usize| {
        let mut update = ListUpdate::new(head, true);
        (0..chunks).for_each(|_| update.push(&[], &vec![7; CHUNK]));
        update.finish(ListLayout::Ending).map(|_| update.gone())
    };
    assert_eq!(ListUpdate::new(head, true).gone(), 3..8, "those before the first are gone already");
    assert_eq!([1, 3, 5, 8].map(|chunks| gone(chunks).unwrap()), [3..8, 3..8, 5..8, 8..8]);
    let mut appended = ListUpdate::new(head, false);
    (0..3).for_each(|_| appended.push(&[], &vec![7; CHUNK]));
    let bytes = appended.finish(ListLayout::Ending).unwrap();
    assert_eq!(appended.gone().count(), 0);
    let head = ListHeader::read(Some(&bytes), ListLayout::Ending).unwrap();
    assert_eq!((head.elements, head.first, head.chunks), (12, 3, 11));
}

#[test]
fn p9_a_damaged_head_is_corrupt() {
    let whole = [1, 0, 1, b'x'];
    for (bytes, good) in [(&whole[..], true), (&whole[..1], false), (&[], false)] {
        assert_eq!(ListHeader::read(Some(bytes), ListLayout::Lasting).is_ok(), good);
    }
    for (bytes, good) in [(&[2, 5, 5][..], true), (&[2, 5, 6], false), (&[2, 5], false)] {
        assert_eq!(
            ListHeader::read(Some(bytes), ListLayout::Ending).is_ok(),
            good,
            "its first chunk is after the last"
        );
    }
    assert!(elements(&[5, b'x']).any(|element| element.is_err()));
}

#[test]
fn a_golden_list_is_laid_out_as_ever() {
    let mut update = ListUpdate::new(ListHeader::default(), false);
    update.push(b"a", b"b");
    update.push(b"", b"");
    assert_eq!(update.finish(ListLayout::Lasting).unwrap(), [2, 0, 2, b'a', b'b', 0]);
    assert_eq!(update.finish(ListLayout::Ending).unwrap(), [2, 0, 0, 2, b'a', b'b', 0]);
    let mut key = vec![9];
    push_key(&mut key, (CHUNKS, b"k", Some(258)));
    assert_eq!(key, [1, b'k', 0, 0, 0, 0, 0, 0, 1, 2]);
    push_key(&mut key, (HEAD, b"k", None));
    assert_eq!(key, [0, b'k']);
}
