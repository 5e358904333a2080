use super::*;
use crate::aggregate::function_tests::result;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type};
use arrow_array::{Array, Int32Array};
use proptest::prelude::*;

fn bins(values: &[Option<i32>], most: i32, cuts: &[usize]) -> Result<Option<Vec<(i32, f64)>>> {
    let columns: [ArrayRef; 2] =
        [Arc::new(Int32Array::from(values.to_vec())), Arc::new(Int32Array::from(vec![most; values.len()]))];
    let found = result("histogram_numeric", &columns, cuts, true)?;
    Ok(found.is_valid(0).then(|| {
        let found = found.as_list::<i32>().value(0);
        let (x, y) = (found.as_struct().column(0).clone(), found.as_struct().column(1).clone());
        let centers = x.as_primitive::<Int32Type>().values().to_vec();
        centers.into_iter().zip(y.as_primitive::<Float64Type>().values().to_vec()).collect()
    }))
}

proptest! {
    #[test]
    fn parts_are_joined_as_histograms_are(
        values in prop::collection::vec(prop::option::of(-30i32..30), 1..80),
        most in 2i32..20,
        cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (values.len() + 1)).collect();
        ends.push(values.len());
        ends.sort_unstable();
        ends.dedup();
        let (mut model, mut from) = (Histogram::default(), 0);
        for end in ends {
            let mut part = Histogram { most: most as usize, ..Histogram::default() };
            values[from..end].iter().flatten().for_each(|value| part.add(f64::from(*value)));
            model.random = Random::default();
            model.join(part);
            from = end;
        }
        let expected: Vec<(i32, f64)> = model.bins.iter().map(|bin| (bin.center as i32, bin.height)).collect();
        prop_assert_eq!(bins(&values, most, &cuts).unwrap(), (!expected.is_empty()).then_some(expected));
    }
}

#[test]
fn a_histogram_has_at_least_two_bins() {
    let error = bins(&[Some(1)], 1, &[]).unwrap_err();
    assert!(error.to_string().contains("the number of bins is 1; it must be at least 2"), "{error}");
    assert_eq!(bins(&[None], 1, &[]).unwrap(), None);
}

#[test]
fn the_bytes_of_spark_are_whole() {
    let mut bytes = [3i32.to_be_bytes(), 1i32.to_be_bytes()].concat();
    bytes.extend([2.5f64.to_be_bytes(), 4f64.to_be_bytes()].concat());
    let found = of_spark(&bytes, "h").unwrap();
    assert_eq!((found.most, found.bins), (3, vec![Bin { center: 2.5, height: 4.0 }]));
    for wrong in [&bytes[..20], &bytes[..5], &[bytes.as_slice(), &[0; 16]].concat(), &[0; 8]] {
        assert!(of_spark(wrong, "h").is_err());
    }
}
