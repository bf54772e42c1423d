//! Pipelines as processes, with directories of this machine as hosts.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};

use super::{End, Place, Running, Setup, built, program};

/// Returns rdpipe with these arguments and an empty stdin.
pub fn rdpipe(arguments: &[&str]) -> Setup {
    let setup = program(&built("rdpipe"), "rdpipe");
    let setup = setup.env("SHELL", "/bin/bash");
    arguments.iter().fold(setup, Setup::arg)
}

/// Runs a pipeline to its end.
#[track_caller]
pub fn run(arguments: &[&str]) -> End {
    rdpipe(arguments).start().end()
}

/// Runs a pipeline with this input to its end.
#[track_caller]
pub fn fed(arguments: &[&str], input: &[u8]) -> End {
    feed(rdpipe(arguments), input).end()
}

/// Starts a program and writes `input` to its stdin from a thread. The program may leave some of it unread.
#[track_caller]
pub fn feed(setup: Setup, input: &[u8]) -> Running {
    let mut running = setup.stdin(Stdio::piped()).start();
    let mut stdin = running.stdin();
    let input = input.to_vec();
    thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    running
}

/// Hosts whose agents a script starts instead of ssh, each in a directory of its own.
pub struct Hosts {
    place: Place,
}

impl Hosts {
    /// Makes the hosts. `before` is a shell line that the script runs first.
    pub fn new(before: &str) -> Self {
        let place = Place::new();
        let script = format!(
            "#!/bin/bash\n{before}\nmkdir -p \"{0}/$1\"; cd \"{0}/$1\" || exit; shift; exec \"$@\"\n",
            place.directory().display()
        );
        place.program("rsh", script.as_bytes());
        Self { place }
    }

    /// Returns rdpipe with these arguments and the options to reach these hosts.
    pub fn rdpipe(&self, arguments: &[&str]) -> Setup {
        rdpipe(&[]).args(self.options()).args(arguments)
    }

    /// Returns rdcat with these arguments and the options to reach these hosts.
    pub fn rdcat(&self, arguments: &[&str]) -> Setup {
        let setup = program(&built("rdcat"), "rdcat");
        setup.args(self.options()).args(arguments)
    }

    /// Returns rdcp with these arguments and the options to reach these hosts.
    pub fn rdcp(&self, arguments: &[&str]) -> Setup {
        let setup = program(&built("rdcp"), "rdcp");
        setup.args(self.options()).args(arguments)
    }

    /// Returns rdperf with these arguments and the options to reach these hosts.
    pub fn rdperf(&self, arguments: &[&str]) -> Setup {
        let setup = program(&built("rdperf"), "rdperf");
        setup.args(self.options()).args(arguments)
    }

    /// Returns rdforward with these arguments and the options to reach these hosts.
    pub fn rdforward(&self, arguments: &[&str]) -> Setup {
        let setup = program(&built("rdforward"), "rdforward");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdforward run` with these arguments and the options to reach these hosts.
    pub fn rdforward_run(&self, arguments: &[&str]) -> Setup {
        let setup = program(&built("rdforward"), "rdforward").arg("run");
        setup.args(self.options()).args(arguments)
    }

    /// Returns `rdforward run` with these arguments and the options to reach these hosts. A shell runs `line` first,
    /// and no signal is ignored.
    pub fn rdforward_run_after(&self, line: &str, arguments: &[&str]) -> Setup {
        let script = format!("{line}; exec \"$0\" run \"$@\"");
        let setup = program("env", "rdforward").args(["--default-signal", "bash", "-c", &script]);
        let setup = setup.arg(built("rdforward"));
        setup.args(self.options()).args(arguments)
    }

    /// Returns the options by which rdpipe, rdcat, rdcp, rdforward and rdperf reach these hosts.
    fn options(&self) -> [String; 4] {
        let rsh = self.place.path("rsh").display().to_string();
        let own = built("rdpipe");
        ["--rsh".to_owned(), rsh, "--remote-rdpipe".to_owned(), own]
    }

    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> End {
        self.rdpipe(arguments).start().end()
    }

    /// Returns the path of a file on a host.
    pub fn path(&self, host: &str, name: &str) -> PathBuf {
        self.place.directory().join(host).join(name)
    }

    /// Writes a file on a host.
    pub fn file(&self, host: &str, name: &str, content: &[u8]) {
        let path = self.path(host, name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[track_caller]
    pub fn read(&self, host: &str, name: &str) -> Vec<u8> {
        let path = self.path(host, name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn has(&self, host: &str, name: &str) -> bool {
        self.path(host, name).exists()
    }

    pub fn directory(&self) -> &Path {
        self.place.directory()
    }
}
