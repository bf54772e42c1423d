//! Expands a path that the user typed.

use std::{
    env,
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Returns the path with a leading `~/` replaced by the home directory. No shell handles the path, so the agent
/// expands it.
pub(crate) fn resolve(path: Vec<u8>) -> PathBuf {
    in_home(path, env::var_os("HOME"))
}

fn in_home(path: Vec<u8>, home: Option<OsString>) -> PathBuf {
    match (path.strip_prefix(b"~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(OsString::from_vec(rest.to_vec())),
        _ => OsString::from_vec(path).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leading_tilde_and_slash_means_the_home_directory() {
        let home = Some(OsString::from("/home/u"));
        let path = |text: &str| in_home(text.as_bytes().to_vec(), home.clone());
        assert_eq!(path("~/a b"), Path::new("/home/u/a b"));
        assert_eq!(path("~a"), Path::new("~a"));
        assert_eq!(path("a/~/b"), Path::new("a/~/b"));
        assert_eq!(in_home(b"~/a".to_vec(), None), Path::new("~/a"));
    }
}
