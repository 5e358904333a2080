//! Values that do not fit: refused at once if they never will, later otherwise.

use super::tests::{World, call_of_value, keys, lists, world};
use super::*;
use fastchangelog_format::error::Subject;

const SMALL: (&str, &str) = ("memory_budget", "64MiB");
/// A quarter of the budget, and more.
const SHARE: usize = 16 << 20;
const LARGE: usize = 20 << 20;

fn refused(error: &Error) -> bool {
    let said = error.message();
    error.kind() == ErrorKind::InvalidArgument
        && error.subject() == Some(&Subject::Option("memory_budget".to_owned()))
        && said.contains("can never fit")
        && said.contains(&SHARE.to_string())
}

#[test]
fn what_can_never_fit_is_refused_at_once_and_the_rest_goes_on() {
    let world = world(&[SMALL]);
    let s = world.open();
    let text = DataType::Utf8;
    let longest = call_of_value("max");
    let ttl = Some(Duration::from_secs(1));
    let large = "x".repeat(LARGE);
    let (one, value) = (keys(&["a"]), keys(&[&large]));
    s.put("kept", Some(7));
    let values = s.state.value_state("values", &text, &text, None).unwrap();
    let ending = s.state.value_state("ending", &text, &text, ttl).unwrap();
    let maps = s.state.map_state("maps", (&text, &text), &text, None).unwrap();
    let many = s.state.list_state("lists", &text, &text, None).unwrap();
    let most = s.state.aggregating_state("most", (&text, &text), &[longest], true, None).unwrap();
    for error in [
        values.put(&one, &value).unwrap_err(),
        ending.put(&one, &value).unwrap_err(),
        values.put(&value, &one).unwrap_err(),
        maps.put(&one, &one, &value).unwrap_err(),
        many.append(&one, &value).unwrap_err(),
        many.put(&one, &lists(&[Some(vec![large.clone()])])).unwrap_err(),
        most.add(&one, Some(&value)).unwrap_err(),
    ] {
        assert!(refused(&error), "{error}");
    }
    s.state.checkpoint().unwrap();
    drop(s);
    assert_eq!(World::open(&world).get("kept"), Some(7));
}

#[test]
fn what_fits_after_a_checkpoint_is_retryable() {
    let world = world(&[SMALL]);
    let s = world.open();
    let text = DataType::Utf8;
    let values = s.state.value_state("values", &text, &text, None).unwrap();
    let (first, value) = (keys(&["a"]), keys(&[&"x".repeat(SHARE / 2)]));
    values.put(&first, &value).unwrap();
    let error = values.put(&keys(&["b"]), &value).unwrap_err();
    assert!(error.is_retryable() && error.message().contains("call checkpoint()"), "{error}");
    s.state.checkpoint().unwrap();
    values.put(&keys(&["b"]), &value).unwrap();
}
