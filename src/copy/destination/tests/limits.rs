//! Tests that the numbers in `docs/copy.md` equal those in the code.

use std::time::Duration;

use crate::copy::destination::{
    control::answers::COMPARED_BYTES,
    large::part::MIN_KEPT_BYTES,
    tree::{deletion::MAX_DEPTH, mirror::STALE_AGE},
};

#[track_caller]
fn assert_quotes(text: &str) {
    let page = include_str!("../../../../docs/copy.md");
    assert!(page.contains(text), "the page does not say: {text}");
}

#[test]
fn the_docs_quote_the_limits_of_copies() {
    let kept = MIN_KEPT_BYTES >> 20;
    assert_quotes(&format!("| of {kept} MiB and more |"));
    let block = COMPARED_BYTES >> 20;
    assert_quotes(&format!("sends the blocks of {block} MiB that differ"));
    assert_quotes(&format!("at most {MAX_DEPTH} levels below it"));
    assert_eq!(STALE_AGE, Duration::from_secs(24 * 60 * 60));
    assert_quotes("`--delete` removes it after a day");
}
