//! The filters of a copy.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use crate::copy::order::FilterRule;

/// Decides which entries are left out. The last rule that matches an entry decides. Nothing below an excluded directory
/// is copied.
pub(crate) struct NameFilter(Option<Gitignore>);

impl NameFilter {
    /// Compiles rules, in the order of the command line.
    ///
    /// # Errors
    ///
    /// A sentence for the user, if a pattern is invalid.
    pub(crate) fn new(rules: &[FilterRule]) -> Result<Self, String> {
        if rules.is_empty() {
            return Ok(Self(None));
        }
        let mut builder = GitignoreBuilder::new("");
        for rule in rules {
            let invalid = |error| format!("the pattern {:?} is invalid: {error}", rule.pattern);
            builder.add_line(None, &line(rule)).map_err(invalid)?;
        }
        let built = builder.build().map_err(|error| error.to_string())?;
        Ok(Self(Some(built)))
    }

    /// Returns true if the entry is left out. `path` is relative to the directory that the user named.
    pub(crate) fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        let Some(rules) = &self.0 else { return false };
        let path = Path::new(OsStr::from_bytes(path));
        matches!(rules.matched(path, is_directory), Match::Ignore(_))
    }

    /// Returns true if no entry is left out.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Returns the line of a gitignore file that means the same. A leading `#` is part of the pattern, not a comment.
fn line(rule: &FilterRule) -> String {
    let escape = if rule.pattern.starts_with('#') {
        "\\"
    } else {
        ""
    };
    let include = if rule.include { "!" } else { "" };
    format!("{include}{escape}{}", rule.pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[(bool, &str)]) -> NameFilter {
        let rule = |&(include, pattern): &(bool, &str)| FilterRule {
            include,
            pattern: pattern.to_owned(),
        };
        let rules: Vec<FilterRule> = rules.iter().map(rule).collect();
        NameFilter::new(&rules).unwrap()
    }

    #[test]
    fn the_last_rule_that_matches_decides() {
        let filter = filter(&[(false, "*.o"), (true, "keep.o"), (false, "/build/")]);
        assert!(filter.excludes(b"a.o", false));
        assert!(filter.excludes(b"deep/down/a.o", false));
        assert!(!filter.excludes(b"deep/keep.o", false));
        assert!(filter.excludes(b"build", true));
        assert!(!filter.excludes(b"build", false));
        assert!(!filter.excludes(b"deep/build", true));
    }

    #[test]
    fn names_are_bytes_and_a_hash_is_no_comment() {
        let filter = filter(&[(false, "#*#"), (false, "b*")]);
        assert!(filter.excludes(b"#draft#", false));
        assert!(filter.excludes(b"b\xff\n", false));
        assert!(!filter.excludes(b"\xff\n", false));
    }

    #[test]
    fn an_invalid_pattern_is_a_sentence() {
        let rules = [FilterRule {
            include: false,
            pattern: "a{b".to_owned(),
        }];
        let why = NameFilter::new(&rules).err().unwrap();
        assert!(why.contains("the pattern \"a{b\" is invalid"), "{why}");
        assert!(NameFilter::new(&[]).unwrap().is_empty());
    }
}
