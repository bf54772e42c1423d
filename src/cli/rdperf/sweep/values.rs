//! The values of a setting: single ones, and ranges such as `1:8M:*2`.

/// The most values of one setting: a range with a small step is a mistake.
const MAX_VALUES: usize = 200;

/// Returns the values of `text`: one value, or those from the first to the last one of a range. `parse` reads one value.
///
/// # Errors
///
/// One sentence for the user.
pub(super) fn values(
    text: &str,
    parse: impl Fn(&str) -> Result<u64, String>,
) -> Result<Vec<u64>, String> {
    let parts: Vec<_> = text.split(':').collect();
    let (first, last, step) = match parts[..] {
        [value] => return Ok(vec![parse(value)?]),
        [first, last] => (first, last, "*2"),
        [first, last, step] => (first, last, step),
        _ => return Err(form(text)),
    };
    let (first, last) = (parse(first)?, parse(last)?);
    if first > last {
        return Err(format!("the range {text} ends before it begins"));
    }
    let (is_factor, step) = match (step.strip_prefix('*'), step.strip_prefix('+')) {
        (Some(factor), _) => (true, factor.parse().map_err(|_| form(text))?),
        (_, Some(addend)) => (false, parse(addend)?),
        _ => return Err(form(text)),
    };
    if step == 0 || (is_factor && (step == 1 || first == 0)) {
        return Err(format!("the range {text} never ends"));
    }
    let next = |value: u64| {
        if is_factor {
            value.checked_mul(step)
        } else {
            value.checked_add(step)
        }
    };
    let range = std::iter::successors(Some(first), |value| {
        next(*value).filter(|value| *value <= last)
    });
    let values: Vec<_> = range.take(MAX_VALUES + 1).collect();
    if values.len() > MAX_VALUES {
        return Err(format!(
            "the range {text} has more than {MAX_VALUES} values"
        ));
    }
    Ok(values)
}

fn form(text: &str) -> String {
    format!(
        "{text} is no value and no range; a range is FIRST:LAST:*FACTOR or FIRST:LAST:+STEP, like 1:8M:*2"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::parse;

    fn sizes(text: &str) -> Result<Vec<u64>, String> {
        values(text, parse::size)
    }

    #[test]
    fn a_range_has_all_values_up_to_its_last() {
        assert_eq!(sizes("64"), Ok(vec![64]));
        assert_eq!(sizes("1:9:*2"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(sizes("1:8"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(sizes("1K:4K:+1K"), Ok(vec![1024, 2048, 3072, 4096]));
        assert_eq!(sizes("0:2:+1"), Ok(vec![0, 1, 2]));
        assert_eq!(sizes("7:7:*3"), Ok(vec![7]));
        let last = u64::MAX.to_string();
        assert_eq!(sizes(&format!("{last}:{last}:*2")), Ok(vec![u64::MAX]));
    }

    #[test]
    fn a_range_that_never_ends_is_refused() {
        for (text, words) in [
            ("8:1", "ends before it begins"),
            ("0:8:*2", "never ends"),
            ("1:8:*1", "never ends"),
            ("1:8:+0", "never ends"),
            ("1:1M:+1", "more than 200 values"),
            ("1:8:2", "a range is"),
            ("1:2:3:4", "a range is"),
            ("1:8:*x", "a range is"),
            ("x:8", "give bytes"),
        ] {
            let error = sizes(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
