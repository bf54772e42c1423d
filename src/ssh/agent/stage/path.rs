//! Paths that the user typed: expands them, and refuses those that lead to descriptors of the agent.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

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

/// The number of links after which the kernel gives up as well (`path_resolution(7)`).
const MOST_LINKS: usize = 40;

/// Fails if `path` leads to a descriptor of this agent, as `/dev/stdout` does. The agent's standard streams are its
/// session with the controller and not the pipeline's, so bytes that are written there would be lost. A descriptor that
/// the agent has inherited, as one of the shell's `<(...)`, is allowed.
///
/// # Errors
///
/// Fails with the reason for the user.
pub(super) fn refuse_own_descriptor(path: &Path) -> io::Result<()> {
    match own_descriptor(path) {
        Some(number) if number <= 2 || !is_inherited(number) => Err(io::Error::other(
            "it is a descriptor of the agent, not of rdpipe: leave this stage out, and the pipeline uses the stdin and stdout of rdpipe",
        )),
        _ => Ok(()),
    }
}

/// Returns the number of the descriptor of this process to which a path leads through links.
fn own_descriptor(path: &Path) -> Option<u32> {
    let process = fs::canonicalize("/proc/self").ok()?;
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..MOST_LINKS {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        if folder.starts_with(&process) && folder.ends_with("fd") {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = folder.join(fs::read_link(&path).ok()?);
    }
    None
}

/// Returns true if a descriptor of this process is one that programs pass on: no descriptor that Rust or tokio opened.
fn is_inherited(number: u32) -> bool {
    let Ok(facts) = fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
        return false;
    };
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_to_an_own_descriptor_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
        let opened = fs::File::create(scratch.path().join("file")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&opened);
        let own = format!("/proc/self/fd/{number}");
        for path in [
            "/dev/stdout",
            "/dev/stdin",
            "/dev/fd/2",
            &own,
            link.to_str().unwrap(),
        ] {
            let refused = refuse_own_descriptor(Path::new(path));
            assert!(refused.is_err(), "{path}");
        }
        let inherited = rustix::io::dup(&opened).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);
        let passed_on = format!("/dev/fd/{number}");
        for path in [
            "/dev/null",
            "/proc/self/comm",
            "missing",
            "file",
            &passed_on,
        ] {
            assert!(refuse_own_descriptor(Path::new(path)).is_ok(), "{path}");
        }
    }

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
