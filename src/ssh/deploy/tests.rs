//! Runs the script with real shells, and a small program in place of rdpipe.

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, symlink},
    process::{Child, ChildStdin, ChildStdout},
    thread,
};

use tempfile::TempDir;

use super::*;

/// Plays the agent: says where it runs, and repeats what it reads.
const AGENT: &str =
    "#!/bin/sh\ncase $1 in --agent=*) exit 0 ;; esac\necho \"agent $0\"\nexec cat\n";

fn program(text: &str) -> Program {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Program::read(
        File::open(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&file)
        ))
        .unwrap(),
    )
    .unwrap()
}

/// A host: a home, and what stands in PATH.
struct Host {
    home: TempDir,
    path: String,
}

impl Host {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            path: "/usr/bin:/bin".to_owned(),
        }
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join(".cache/rdpipe")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn start(&self, shell: &str, program: &Program) -> Session {
        let mut child = Command::new(shell)
            .args((shell.ends_with("busybox")).then_some("sh"))
            .env("HOME", self.home.path())
            .env("PATH", &self.path)
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let script = script(DeployPolicy::Auto, Some(program));
        stdin.write_all(script.as_bytes()).unwrap();
        Session {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        }
    }

    /// Runs the script with `sh` to the first line that is not about the upload.
    fn run(&self, program: &Program) -> (Vec<ScriptLine>, String) {
        self.start("sh", program).finish(program)
    }

    /// Runs the script, which must fail. Returns the explanation.
    fn refusal(&self, program: &Program) -> String {
        match &self.run(program).0[..] {
            [.., ScriptLine::Failed(fault)] => fault.explain("h"),
            lines => panic!("{lines:?}"),
        }
    }
}

/// A shell that runs the script.
struct Session {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    /// Returns the next line of stdout that is not empty; an empty one at its end.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 || line != "\n" {
                return line.trim_end().to_owned();
            }
        }
    }

    fn upload(&mut self, program: &Program) {
        let _ = self.stdin.write_all(&program.piece(0).unwrap());
        let _ = self.stdin.write_all(b"\n");
    }

    /// Answers the script. Returns its lines, and what the agent said when it received a line.
    fn finish(mut self, program: &Program) -> (Vec<ScriptLine>, String) {
        let mut lines = Vec::new();
        let agent = loop {
            let line = self.line();
            let Some(line) = ScriptLine::parse(&line) else {
                break line;
            };
            if let ScriptLine::Wanted(_) = line {
                self.upload(program);
            }
            lines.push(line);
        };
        let _ = self.stdin.write_all(b"a message\n");
        drop(self.stdin);
        let mut rest = String::new();
        while self.stdout.read_line(&mut rest).unwrap() > 0 {}
        self.child.wait().unwrap();
        (lines, agent + &rest)
    }
}

#[test]
fn every_shell_of_this_machine_receives_the_program_once() {
    for shell in [
        "sh", "bash", "dash", "busybox", "zsh", "ksh", "mksh", "yash",
    ] {
        let Ok(shell) = which(shell) else {
            println!("SKIPPED: no {shell} here");
            continue;
        };
        let mut host = Host::new();
        if shell.ends_with("busybox") {
            // Its own programs, and no others.
            let tools = host.home.path().join("tools");
            fs::create_dir(&tools).unwrap();
            for tool in [
                "sh",
                "cat",
                "chmod",
                "date",
                "head",
                "id",
                "ls",
                "mkdir",
                "mktemp",
                "mv",
                "rm",
                "sha256sum",
                "tr",
                "uname",
            ] {
                symlink(&shell, tools.join(tool)).unwrap();
            }
            host.path = tools.to_str().unwrap().to_owned();
        }
        let program = program(AGENT);
        let (lines, said) = host.start(&shell, &program).finish(&program);
        let [ScriptLine::Wanted(Want::Missing), ScriptLine::Stored(path)] = &lines[..] else {
            panic!("{shell}: {lines:?}, {said}");
        };
        // The `head` of busybox reads ahead, and takes the line end after the program.
        let said = said.replace("\na message", "a message");
        assert_eq!(said, format!("agent {path}a message\n"), "{shell}");
        // The second run receives the lines from the first one on.
        let (lines, said) = host.start(&shell, &program).finish(&program);
        assert_eq!(
            (&lines[..], said),
            (&[][..], format!("agent {path}a message\n")),
            "{shell}"
        );
        assert_eq!(host.names().len(), 1);
    }
}

fn which(name: &str) -> Result<String, ()> {
    let folders = ["/usr/bin", "/bin"].map(|folder| format!("{folder}/{name}"));
    folders
        .into_iter()
        .find(|path| Path::new(path).exists())
        .ok_or(())
}

/// Puts a program `rdpipe` into the PATH of a host.
fn install(host: &mut Host, text: &str) {
    write_program(&host.home.path().join("rdpipe"), text);
    host.path = format!("{}:{}", host.home.path().display(), host.path);
}

/// Writes a program by another process: a child that another test starts meanwhile would keep a file open that this one
/// writes, and such a file cannot be run.
fn write_program(file: &Path, text: &str) {
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""])
        .args([file.as_os_str(), text.as_ref()])
        .status();
    assert!(written.unwrap().success());
}

#[test]
fn a_program_in_the_path_runs_if_it_speaks_the_version() {
    let mut host = Host::new();
    install(&mut host, AGENT);
    let (lines, said) = host.run(&program(AGENT));
    assert!(
        lines.is_empty() && said.contains("/rdpipea message"),
        "{said}"
    );
    let mut host = Host::new();
    install(&mut host, "#!/bin/sh\nexit 2\n");
    let (lines, said) = host.run(&program(AGENT));
    assert_eq!(lines[0], ScriptLine::Wanted(Want::Version));
    assert!(said.contains(".cache/rdpipe/"), "{said}");
}

#[test]
fn a_program_that_cannot_be_read_is_not_needed_where_there_is_one() {
    let mut host = Host::new();
    install(&mut host, AGENT);
    let mut shell = Command::new("sh");
    shell.env("HOME", host.home.path()).env("PATH", &host.path);
    let mut shell = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    stdin
        .write_all(script(DeployPolicy::Auto, None).as_bytes())
        .unwrap();
    drop(stdin);
    let said = shell.wait_with_output().unwrap().stdout;
    assert!(
        said.starts_with(b"agent "),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn twenty_at_once_leave_one_file() {
    let (host, program) = (Host::new(), program(AGENT));
    let mut sessions: Vec<_> = (0..20).map(|_| host.start("sh", &program)).collect();
    // All of them want it before the first one has it.
    for session in &mut sessions {
        let line = session.line();
        assert!(line.contains("wanted"), "{line}");
    }
    thread::scope(|scope| {
        for mut session in sessions {
            let program = &program;
            scope.spawn(move || {
                session.upload(program);
                let (lines, said) = session.finish(program);
                assert!(matches!(lines[..], [ScriptLine::Stored(_)]), "{lines:?}");
                assert!(said.ends_with("a message\n"), "{said}");
            });
        }
    });
    assert_eq!(host.names().len(), 1);
    let version = host.cache().join(&host.names()[0]);
    assert_eq!(fs::read_dir(version).unwrap().count(), 1);
}

#[test]
fn an_upload_that_is_killed_leaves_nothing_under_the_final_name() {
    let (host, program) = (Host::new(), program(AGENT));
    let mut session = host.start("sh", &program);
    session.line();
    session.stdin.write_all(b"#!/bin/sh").unwrap();
    session.child.kill().unwrap();
    session.child.wait().unwrap();
    drop(session);
    assert!(host.names().iter().all(|name| name.starts_with("new.")));
    // What a day ago was left goes with the next upload.
    fs::write(host.cache().join("new.1000.x"), "").unwrap();
    let (lines, _) = host.run(&program);
    assert!(matches!(lines[..], [_, ScriptLine::Stored(_)]), "{lines:?}");
    assert!(!host.cache().join("new.1000.x").exists());
}

#[test]
fn three_versions_are_kept() {
    let host = Host::new();
    for version in 0..5 {
        host.run(&program(&format!("{AGENT}# {version}\n")));
    }
    assert_eq!(host.names().len(), 3);
    let (lines, _) = host.run(&program(&format!("{AGENT}# 4\n")));
    assert_eq!(lines, []);
}

#[test]
fn a_file_that_another_user_can_change_is_never_run() {
    let program = program(AGENT);
    for changed in [
        "",
        ".cache",
        ".cache/rdpipe",
        ".cache/rdpipe/VERSION",
        ".cache/rdpipe/VERSION/rdpipe",
    ] {
        for mode in [0o702, 0o722, 0o720] {
            let host = Host::new();
            host.run(&program);
            let changed = changed.replace("VERSION", &host.names()[0]);
            let path = host
                .home
                .path()
                .join(changed)
                .components()
                .collect::<PathBuf>();
            let group = path.metadata().unwrap();
            let own_group =
                std::os::unix::fs::MetadataExt::gid(&group) == rustix::process::getuid().as_raw();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let is_file = path.is_file();
            if mode == 0o720 && own_group && !is_file {
                // A group of this user alone.
                assert_eq!(host.run(&program).0, []);
                continue;
            }
            let text = host.refusal(&program);
            assert!(text.contains("other users can change"), "{text}");
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        }
    }
}

#[test]
fn another_user_s_file_is_never_run() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can give files away");
        return;
    }
    let (host, program) = (Host::new(), program(AGENT));
    host.run(&program);
    let version = host.cache().join(&host.names()[0]);
    std::os::unix::fs::chown(version.join("rdpipe"), Some(65_533), None).unwrap();
    let text = host.refusal(&program);
    assert!(text.contains("user 65533"), "{text}");
}

#[test]
fn a_file_that_is_not_complete_is_replaced() {
    let (host, program) = (Host::new(), program(AGENT));
    host.run(&program);
    let file = host.cache().join(&host.names()[0]).join("rdpipe");
    fs::write(&file, "").unwrap();
    let (lines, said) = host.run(&program);
    assert!(matches!(lines[..], [_, ScriptLine::Stored(_)]), "{lines:?}");
    assert!(said.ends_with("a message\n"), "{said}");
}

#[test]
fn what_cannot_be_stored_or_run_is_a_sentence() {
    let fails = "#!/bin/sh\necho 'version GLIBC_2.99 not found' >&2; exit 1\n";
    let text = Host::new().refusal(&program(fails));
    assert!(
        text.contains("cannot run there: version GLIBC_2.99 not found; install"),
        "{text}"
    );
    // A file stands where the folder should be.
    let host = Host::new();
    fs::write(host.home.path().join(".cache"), "").unwrap();
    let text = host.refusal(&program(AGENT));
    assert!(
        text.starts_with("cannot store rdpipe on h: mkdir"),
        "{text}"
    );
    // The bytes change on their way.
    let mut damaged = program(AGENT);
    damaged.digest = "0".repeat(64);
    let host = Host::new();
    let text = host.refusal(&damaged);
    assert!(text.contains("damaged"), "{text}");
    assert_eq!(host.names(), [""; 0]);
}

#[test]
fn another_machine_is_not_sent_the_program() {
    let mut host = Host::new();
    let uname = host.home.path().join("uname");
    let text = "#!/bin/sh\ncase $1 in -s) echo Linux ;; *) echo riscv64 ;; esac\n";
    write_program(&uname, text);
    host.path = format!("{}:{}", host.home.path().display(), host.path);
    let text = host.refusal(&program(AGENT));
    assert!(
        text.contains("h is Linux riscv64, this machine Linux"),
        "{text}"
    );
    assert!(!host.cache().exists());
}

#[test]
fn the_script_leaves_the_surroundings_of_the_agent_as_they_are() {
    let host = Host::new();
    let program = program(
        "#!/bin/sh\ncase $1 in --agent=*) exit 0 ;; esac\numask; set | grep ^rd_\ntrap\necho end\nexec cat\n",
    );
    let (_, said) = host.run(&program);
    let mask = Command::new("sh").args(["-c", "umask"]).output().unwrap();
    let mask = String::from_utf8(mask.stdout).unwrap();
    assert_eq!(said, format!("{}end\n\na message\n", mask.trim_end()));
}

#[test]
fn lines_of_other_programs_are_not_those_of_the_script() {
    for line in [
        "",
        "rdpipe-deploy",
        "rdpipe-deploy unknown",
        "rdpipe-deploy failed",
        "wanted auto",
    ] {
        assert_eq!(ScriptLine::parse(line), None, "{line}");
    }
    let line = ScriptLine::parse("rdpipe-deploy failed store mkdir: no\u{1b}[31m room ");
    let Some(ScriptLine::Failed(StartFault::Store(said))) = line else {
        panic!("{line:?}");
    };
    assert!(!said.contains('\u{1b}'), "{said}");
}
