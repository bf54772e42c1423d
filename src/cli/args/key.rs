//! The sources of the key: the argument KEY, `--key-file`, then the environment.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use zeroize::Zeroizing;

use crate::{
    cli::shared::secret::{blank_argument, blank_environment},
    key::{Key, KeyError},
};

/// The environment variable that holds a key.
pub(crate) const KEY_VARIABLE: &str = "RDPIPE_KEY";

/// The arguments that give a key.
///
/// clap does not read the environment variable: its help could show the value, and it could not
/// distinguish a variable that is set from an argument KEY.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeyOptions {
    /// The argument KEY, until `take` takes it.
    #[arg(value_name = "KEY", value_parser = OsStringValueParser::new().map(Secret::new))]
    #[arg(help = "Key that both ends share [env: RDPIPE_KEY]")]
    key: Option<Secret>,

    /// Read the key from the first line of FILE; then name the file for the data with -i or -o
    // An argument KEY beside --key-file is most often meant as the file for the data. Using it as the key would be wrong.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,
}

impl KeyOptions {
    /// Takes the key from the arguments or the environment, then overwrites it in both, so that `ps` does not show it.
    ///
    /// Call this function first in `main`, before other threads start. The second part of the result is an error if
    /// the key could not be overwritten: show it as a warning.
    pub(crate) fn take(&mut self) -> (KeySource, io::Result<()>) {
        let argument = self
            .key
            .as_ref()
            .map_or(Ok(()), |key| blank_argument(&key.0));
        let (variable, blanked) = take_variable();
        (self.choose(variable), argument.and(blanked))
    }

    /// Returns the first source that the user gave.
    fn choose(&mut self, variable: Option<Secret>) -> KeySource {
        match (self.key.take(), self.key_file.take()) {
            (Some(key), _) => KeySource::Text(key),
            (None, Some(path)) => KeySource::File(path),
            (None, None) => variable.map_or(KeySource::None, KeySource::Text),
        }
    }
}

/// Takes the key from the environment, then overwrites it there, so that `ps` does not show it. The second part of the
/// result is an error if it could not be overwritten: show it as a warning.
///
/// Call this function first in `main`, before other threads start.
pub(crate) fn take_variable() -> (Option<Secret>, io::Result<()>) {
    let variable = env::var_os(KEY_VARIABLE).map(Secret);
    (variable, blank_environment(KEY_VARIABLE))
}

/// The place from which the key is read.
#[derive(Debug)]
pub(crate) enum KeySource {
    /// The user gave no key.
    None,
    /// The key is this text.
    Text(Secret),
    /// The key is the first line of this file.
    File(PathBuf),
}

/// A key, and a warning for the user.
#[derive(Debug)]
pub(crate) struct LoadedKey {
    /// The key; stretched, unless rdpipe made it.
    pub(crate) key: Key,
    /// A sentence that warns about the key file, for example that others can read it.
    pub(crate) warning: Option<String>,
}

impl KeySource {
    /// Reads and stretches the key; returns `None` if no key was given. Stretching takes tens of milliseconds.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Key::parse`] and [`Key::from_file`].
    pub(crate) fn load(self) -> Result<Option<LoadedKey>, KeyError> {
        match self {
            Self::None => Ok(None),
            Self::Text(text) => {
                let key = Key::parse(text.0.as_encoded_bytes())?;
                Ok(Some(LoadedKey { key, warning: None }))
            }
            Self::File(path) => {
                let (key, warning) = Key::from_file(path)?;
                Ok(Some(LoadedKey { key, warning }))
            }
        }
    }
}

/// A secret argument: `Debug` does not show it, and it is wiped from memory when dropped.
#[derive(Clone)]
pub(crate) struct Secret(OsString);

impl Secret {
    /// Wraps `text` as a secret.
    pub(crate) fn new(text: OsString) -> Self {
        Self(text)
    }

    /// Returns the secret text.
    pub(crate) fn text(&self) -> &OsStr {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        drop(Zeroizing::new(std::mem::take(&mut self.0).into_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(key: Option<&str>, key_file: Option<&str>) -> KeyOptions {
        KeyOptions {
            key: key.map(|key| Secret(key.into())),
            key_file: key_file.map(PathBuf::from),
        }
    }

    fn chosen(key: Option<&str>, key_file: Option<&str>, variable: Option<&str>) -> KeySource {
        options(key, key_file).choose(variable.map(|key| Secret(key.into())))
    }

    #[test]
    fn the_argument_comes_first_then_the_file_then_the_environment() {
        let secret = |source: KeySource| match source {
            KeySource::Text(key) => key.0.to_string_lossy().into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(secret(chosen(Some("a"), None, Some("v"))), "a");
        assert!(matches!(
            chosen(None, Some("f"), Some("v")),
            KeySource::File(_)
        ));
        assert_eq!(secret(chosen(None, None, Some("v"))), "v");
        assert!(matches!(chosen(None, None, None), KeySource::None));
    }

    #[test]
    fn an_empty_key_is_an_error_and_not_an_absent_key() {
        assert!(chosen(None, None, None).load().unwrap().is_none());
        // `RDPIPE_KEY=$UNSET rdrecv 1` must fail: rdrecv must not make a key instead.
        assert!(matches!(
            chosen(None, None, Some("")).load(),
            Err(KeyError::Empty)
        ));
        assert!(matches!(
            chosen(Some(""), None, Some("v")).load(),
            Err(KeyError::Empty)
        ));
        assert!(
            chosen(None, Some("/nonexistent"), Some("v"))
                .load()
                .is_err()
        );
    }

    #[test]
    fn argument_file_and_environment_give_the_same_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret_key\n").unwrap();
        let path = file.path().to_str().unwrap();
        let load = |source: KeySource| *source.load().unwrap().unwrap().key.secret();
        let key = load(chosen(Some("secret_key"), None, None));
        assert_eq!(load(chosen(None, Some(path), None)), key);
        assert_eq!(load(chosen(None, None, Some("secret_key"))), key);
    }
}
