//! Hides secrets from `ps`: overwrites them where the kernel shows a process's arguments and
//! environment to others.
//!
//! Safe code has no pointer to `argv`, and needs none: the kernel says in `/proc/self/stat` where
//! both lie, and `/proc/self/mem` writes there.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::unix::{ffi::OsStrExt, fs::FileExt},
};

use zeroize::Zeroizing;

/// Overwrites every argument that equals `value` with as many `*`.
///
/// Call it when the arguments have been parsed, and before there are threads:
/// [`env::args_os`] gives the stars from then on.
///
/// # Errors
///
/// When the system does not let a process write its own memory this way (no `/proc`, or a program
/// that the kernel protects), or when no argument has that value.
pub(crate) fn blank_argument(value: &OsStr) -> io::Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    blank(KernelBlock::Arguments, |element| {
        (element == value.as_bytes()).then_some(0)
    })
}

/// Overwrites the value of the environment variable `name` with as many `*`; all is well when it
/// is not set.
///
/// Call it when the value has been read, and before there are threads: [`env::var_os`], and every
/// child, gets the stars from then on.
///
/// # Errors
///
/// As [`blank_argument`].
pub(crate) fn blank_environment(name: &str) -> io::Result<()> {
    if env::var_os(name).is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    blank(KernelBlock::Environment, |element| {
        let rest = element.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(element.len() - rest.len())
    })
}

/// Which of the two blocks that the kernel laid out when the program was started.
#[derive(Clone, Copy)]
enum KernelBlock {
    Arguments,
    Environment,
}

impl KernelBlock {
    /// The first of the two fields of `/proc/self/stat` that hold its bounds, counted from 1 as in
    /// `proc_pid_stat(5)`.
    fn field(self) -> usize {
        match self {
            Self::Arguments => 48,
            Self::Environment => 50,
        }
    }
}

/// More than the kernel allows arguments and environment to be together (three quarters of 8 MiB).
const MAX_BLOCK_BYTES: u64 = 8 << 20;

/// Overwrites the end of every element in which `secret_at` finds a secret.
fn blank(which: KernelBlock, secret_at: impl Fn(&[u8]) -> Option<usize>) -> io::Result<()> {
    let stat = fs::read("/proc/self/stat")?;
    let bounds =
        bounds(&stat, which.field()).ok_or_else(|| unusual("no bounds in /proc/self/stat"))?;
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")?;
    let spans = spans(&block(&memory, &bounds)?, &secret_at);
    if spans.is_empty() {
        return Err(unusual("it is not where the kernel says it is"));
    }
    for span in &spans {
        let at = bounds.start + span.start as u64;
        memory.write_all_at(&vec![b'*'; span.len()], at)?;
    }
    // A kernel that refuses such writes says so; one that loses them would not.
    let after = block(&memory, &bounds)?;
    let blanked = |span: &Range<usize>| after[span.clone()].iter().all(|byte| *byte == b'*');
    if spans.iter().all(blanked) {
        Ok(())
    } else {
        Err(unusual("the write had no effect"))
    }
}

/// The bytes between the bounds.
fn block(memory: &File, bounds: &Range<u64>) -> io::Result<Zeroizing<Vec<u8>>> {
    let length = bounds.end.saturating_sub(bounds.start);
    if length == 0 || length > MAX_BLOCK_BYTES {
        return Err(unusual("the bounds in /proc/self/stat make no sense"));
    }
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut bytes = Zeroizing::new(vec![0; length]);
    memory.read_exact_at(&mut bytes, bounds.start)?;
    Ok(bytes)
}

/// The addresses in field `first` (from 1) and the one after it.
fn bounds(stat: &[u8], first: usize) -> Option<Range<u64>> {
    // The second field is the program's name in parentheses, and may hold anything.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(first.checked_sub(3)?);
    Some(fields.next()?.parse().ok()?..fields.next()?.parse().ok()?)
}

/// Where secrets lie in a block of elements that NUL bytes end.
fn spans(block: &[u8], secret_at: impl Fn(&[u8]) -> Option<usize>) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut spans = Vec::new();
    for element in block.split(|byte| *byte == 0) {
        if let Some(at) = secret_at(element) {
            spans.push(start + at..start + element.len());
        }
        start += element.len() + 1;
    }
    spans
}

fn unusual(what: &'static str) -> io::Error {
    io::Error::other(what)
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsString,
        io::{BufRead, BufReader, Read},
        process::{Child, Command, Stdio},
    };

    use super::*;

    const SECRET: &str = "keep_this_secret";
    const AS_CHILD: &str = "RDPIPE_TEST_BLANK";
    const VARIABLE: &str = "RDPIPE_KEY";

    /// The same test binary again, running only `the_child`; to libtest the other arguments are
    /// names of further tests.
    fn child() -> Child {
        Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "cli::shared::secret::tests::the_child",
                "--",
            ])
            .args([
                SECRET,
                "--key-file=keep_this_secret",
                "keep_this_secret_too",
                SECRET,
            ])
            .env(AS_CHILD, "1")
            .env(VARIABLE, SECRET)
            .env("RDPIPE_KEY_TOO", "stays")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn the_child() {
        if env::var_os(AS_CHILD).is_none() {
            return;
        }
        blank_argument(OsStr::new(SECRET)).unwrap();
        blank_environment(VARIABLE).unwrap();
        blank_environment("RDPIPE_NOT_SET").unwrap();
        blank_argument(OsStr::new("")).unwrap();
        assert!(blank_argument(OsStr::new("no such argument")).is_err());
        assert_eq!(
            env::var_os(VARIABLE),
            Some(OsString::from("*".repeat(SECRET.len())))
        );
        println!("\nblanked");
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn others_see_stars() {
        let mut child = child();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let blanked = output.any(|line| line.unwrap() == "blanked");
        let proc = format!("/proc/{}", child.id());
        let arguments = fs::read_to_string(format!("{proc}/cmdline")).unwrap();
        let environment = fs::read_to_string(format!("{proc}/environ")).unwrap();
        drop(child.stdin.take());
        // To the end, so that the child can say all it has to say.
        let _ = output.count();
        assert!(child.wait().unwrap().success() && blanked);

        let stars = "*".repeat(SECRET.len());
        let arguments: Vec<&str> = arguments.split('\0').skip(4).collect();
        let untouched = ["--key-file=keep_this_secret", "keep_this_secret_too"];
        assert_eq!(
            arguments[1..],
            [&stars, untouched[0], untouched[1], &stars, ""]
        );
        let environment: Vec<&str> = environment.split('\0').collect();
        assert!(environment.contains(&format!("{VARIABLE}={stars}").as_str()));
        assert!(environment.contains(&"RDPIPE_KEY_TOO=stays"));
        assert!(!environment.iter().any(|element| element.contains(SECRET)));
    }

    #[test]
    fn a_program_name_cannot_shift_the_fields() {
        let stat = |name: &str| {
            let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
            format!("1 ({name}) {}\n", fields.join(" "))
        };
        for name in ["rdrecv", "a b", "a) 1 2 3", ") ("] {
            assert_eq!(bounds(stat(name).as_bytes(), 48), Some(48..49));
            assert_eq!(bounds(stat(name).as_bytes(), 50), Some(50..51));
        }
        for broken in ["", "1 (a", "1 (a) R 1 2"] {
            assert_eq!(bounds(broken.as_bytes(), 48), None);
        }
    }

    #[test]
    fn only_whole_elements_match() {
        let whole = |element: &[u8]| (element == b"key").then_some(0);
        assert_eq!(
            spans(b"rdrecv\x001\0key\0akey\0keys\0key\0", whole),
            [9..12, 23..26]
        );
        assert_eq!(spans(b"--key-file=key\0", whole), []);
        assert_eq!(spans(b"key\0key", whole), [0..3, 4..7]);
    }
}
