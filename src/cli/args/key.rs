//! Where the key comes from: KEY, `--key-file` or the environment, in this order.

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
/// The environment is not clap's business here: its help could show the value, and a variable that
/// is set would count as KEY where the two must be told apart.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeyOptions {
    /// What `take` takes.
    #[arg(value_name = "KEY", value_parser = OsStringValueParser::new().map(Secret::new))]
    #[arg(help = "Key that both ends share [env: RDPIPE_KEY]")]
    key: Option<Secret>,

    /// Read the key from the first line of FILE; the data's file is then named with -i or -o
    // A KEY beside it is most often a file for data: taking it for the key would be a wrong guess.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,
}

impl KeyOptions {
    /// Takes the key from the arguments or the environment, then hides both from `ps`.
    ///
    /// Call it first of all, before there are threads; the second part says why the key could not
    /// be hidden, worth a warning.
    pub(crate) fn take(&mut self) -> (KeySource, io::Result<()>) {
        let variable = env::var_os(KEY_VARIABLE).map(Secret);
        let argument = self
            .key
            .as_ref()
            .map_or(Ok(()), |key| blank_argument(&key.0));
        let hidden = argument.and(blank_environment(KEY_VARIABLE));
        (self.choose(variable), hidden)
    }

    /// The first that there is.
    fn choose(&mut self, variable: Option<Secret>) -> KeySource {
        match (self.key.take(), self.key_file.take()) {
            (Some(key), _) => KeySource::Text(key),
            (None, Some(path)) => KeySource::File(path),
            (None, None) => variable.map_or(KeySource::None, KeySource::Text),
        }
    }
}

/// Where the key is to be had.
#[derive(Debug)]
pub(crate) enum KeySource {
    /// The user gave none.
    None,
    /// This text.
    Text(Secret),
    /// The first line of this file.
    File(PathBuf),
}

/// A key, and what the user should be warned about.
#[derive(Debug)]
pub(crate) struct LoadedKey {
    /// The key, stretched where it had to be.
    pub(crate) key: Key,
    /// A sentence about how it was given.
    pub(crate) warning: Option<String>,
}

impl KeySource {
    /// Reads and stretches the key; `None` when none was given. Takes tens of milliseconds.
    ///
    /// # Errors
    ///
    /// Those of [`Key::parse`] and [`Key::from_file`].
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

/// An argument that no message shows, wiped when dropped.
#[derive(Clone)]
pub(crate) struct Secret(OsString);

impl Secret {
    /// Keeps this to itself.
    pub(crate) fn new(text: OsString) -> Self {
        Self(text)
    }

    /// What is kept.
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
    fn no_key_is_not_an_empty_key() {
        assert!(chosen(None, None, None).load().unwrap().is_none());
        // `RDPIPE_KEY=$UNSET rdrecv 1` must not quietly become a made key.
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
    fn every_way_gives_the_same_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret_key\n").unwrap();
        let path = file.path().to_str().unwrap();
        let load = |source: KeySource| *source.load().unwrap().unwrap().key.secret();
        let key = load(chosen(Some("secret_key"), None, None));
        assert_eq!(load(chosen(None, Some(path), None)), key);
        assert_eq!(load(chosen(None, None, Some("secret_key"))), key);
    }
}
