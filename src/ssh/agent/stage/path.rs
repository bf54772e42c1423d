//! A path as the user typed it.

use std::{
    env,
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The path, with a leading `~/` as the home directory: no shell sees it that would do that.
pub(super) fn resolve(path: Vec<u8>) -> PathBuf {
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
    fn home_is_found() {
        let home = Some(OsString::from("/home/u"));
        let path = |text: &str| in_home(text.as_bytes().to_vec(), home.clone());
        assert_eq!(path("~/a b"), Path::new("/home/u/a b"));
        assert_eq!(path("~a"), Path::new("~a"));
        assert_eq!(path("a/~/b"), Path::new("a/~/b"));
        assert_eq!(in_home(b"~/a".to_vec(), None), Path::new("~/a"));
    }
}
