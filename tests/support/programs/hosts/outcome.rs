//! Checks of the exit status and the output of rdpipe.

use crate::support::programs::{End, Setup};

/// Checks of a program that has ended.
pub trait Outcome {
    /// Checks that the program exited with 0, wrote `stdout`, and wrote nothing to stderr.
    fn is(&self, stdout: impl AsRef<[u8]>);

    /// Checks that the program exited with `code`, and that its stderr contains all these words.
    fn tells(&self, code: i32, words: &[&str]);

    /// Checks that its stderr contains none of these words.
    fn is_silent_on(&self, words: &[&str]);
}

impl Outcome for End {
    #[track_caller]
    fn is(&self, stdout: impl AsRef<[u8]>) {
        assert_eq!(self.exits(0), "");
        let (found, expected) = (&self.stdout, stdout.as_ref());
        if found != expected {
            let same = found.iter().zip(expected).take_while(|(a, b)| a == b);
            panic!(
                "{} bytes came out and {} were expected; the first {} are the same",
                found.len(),
                expected.len(),
                same.count()
            );
        }
    }

    #[track_caller]
    fn tells(&self, code: i32, words: &[&str]) {
        let text = self.exits(code);
        for word in words {
            assert!(text.contains(word), "it did not say {word:?}, but:\n{text}");
        }
    }

    #[track_caller]
    fn is_silent_on(&self, words: &[&str]) {
        for word in words {
            assert!(
                !self.stderr.contains(word),
                "it said {word:?}:\n{}",
                self.stderr
            );
        }
    }
}
