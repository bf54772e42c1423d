//! Hides secrets from `ps`: overwrites them in the memory from which the kernel shows a process's arguments and
//! environment to other processes.
//!
//! This needs no pointer to `argv`, which safe code does not have: `/proc/self/stat` has the addresses of both blocks,
//! and writing to `/proc/self/mem` changes them.

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
/// Call this function after the arguments have been parsed, and before other threads start: [`env::args_os`] returns
/// the stars from then on.
/// Fails if no argument equals `value`, or if the process cannot write its own memory: there is no `/proc`, or the
/// kernel protects the program.
pub(crate) fn blank_argument(value: &OsStr) -> io::Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    blank(KernelBlock::Arguments, |element| {
        (element == value.as_bytes()).then_some(0)
    })
}

/// Overwrites the value of the environment variable `name` with as many `*`. Does nothing if the variable is not set.
///
/// Call this function after the value has been read, and before other threads start: [`env::var_os`] and child
/// processes get the stars from then on.
/// Fails if the process cannot write its own memory, like [`blank_argument`].
pub(crate) fn blank_environment(name: &str) -> io::Result<()> {
    if env::var_os(name).is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    blank(KernelBlock::Environment, |element| {
        let rest = element.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(element.len() - rest.len())
    })
}

/// One of the two blocks of memory that the kernel fills when it starts the program.
#[derive(Clone, Copy)]
enum KernelBlock {
    Arguments,
    Environment,
}

impl KernelBlock {
    /// Returns the number of the first of the two fields of `/proc/self/stat` that hold the block's bounds. Fields are
    /// counted from 1, as in `proc_pid_stat(5)`.
    fn field(self) -> usize {
        match self {
            Self::Arguments => 48,
            Self::Environment => 50,
        }
    }
}

/// The largest block that is read: more than the three quarters of 8 MiB that the kernel allows for arguments and
/// environment together.
const MAX_BLOCK_BYTES: u64 = 8 << 20;

/// Overwrites secrets in a block. `secret_at` returns the position in an element from which it is overwritten, or
/// `None`.
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
        return Err(unusual("the secret is not where /proc/self/stat says"));
    }
    for span in &spans {
        let at = bounds.start + span.start as u64;
        memory.write_all_at(&vec![b'*'; span.len()], at)?;
    }
    // A kernel that refuses such writes returns an error. Reading the block again also detects a write without effect.
    let after = block(&memory, &bounds)?;
    let blanked = |span: &Range<usize>| after[span.clone()].iter().all(|byte| *byte == b'*');
    if spans.iter().all(blanked) {
        Ok(())
    } else {
        Err(unusual("the write had no effect"))
    }
}

/// Reads the bytes between the bounds from the process's memory.
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

/// Returns the addresses in field `first` (counted from 1) and the field after it.
fn bounds(stat: &[u8], first: usize) -> Option<Range<u64>> {
    // The second field is the program's name in parentheses. The name may contain any characters.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(first.checked_sub(3)?);
    Some(fields.next()?.parse().ok()?..fields.next()?.parse().ok()?)
}

/// Returns the positions of the secrets in a block of elements that end with NUL bytes.
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

    /// Starts this test binary again, to run only `the_child`. libtest takes the other arguments for names of further
    /// tests.
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
    fn other_processes_see_stars_in_place_of_secrets() {
        let mut child = child();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let blanked = output.any(|line| line.unwrap() == "blanked");
        let proc = format!("/proc/{}", child.id());
        let arguments = fs::read_to_string(format!("{proc}/cmdline")).unwrap();
        let environment = fs::read_to_string(format!("{proc}/environ")).unwrap();
        drop(child.stdin.take());
        // Reading to the end lets the child write all of its output.
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
    fn a_program_name_with_spaces_or_parentheses_does_not_shift_the_fields() {
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
    fn only_arguments_that_equal_the_secret_match() {
        let whole = |element: &[u8]| (element == b"key").then_some(0);
        assert_eq!(
            spans(b"rdrecv\x001\0key\0akey\0keys\0key\0", whole),
            [9..12, 23..26]
        );
        assert!(spans(b"--key-file=key\0", whole).is_empty());
        assert_eq!(spans(b"key\0key", whole), [0..3, 4..7]);
    }
}
