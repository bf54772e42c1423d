//! Users who may start few threads and processes: every program ends with a sentence, whatever it cannot start.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use rustix::process::geteuid;

use crate::support::programs::{Place, install, program, skip};

/// A user who owns no process on this machine.
const USER: u32 = 64_017;

/// Limits under which a copy or pipeline cannot start all of its threads, at one place or another.
const TOO_FEW: u32 = 16;

/// A limit under which all threads start.
const ENOUGH: u32 = 64;

#[test]
fn a_thread_that_cannot_be_started_is_a_sentence() {
    if !geteuid().is_root() {
        return skip("only root can become another user with a limit of its own");
    }
    let place = Place::new();
    fs::set_permissions(place.directory(), Permissions::from_mode(0o777)).unwrap();
    place.file("f", b"data\n");
    for (name, path) in [
        ("rdcat", env!("CARGO_BIN_EXE_rdcat")),
        ("rdcp", env!("CARGO_BIN_EXE_rdcp")),
        ("rdpipe", env!("CARGO_BIN_EXE_rdpipe")),
        ("rdsend", env!("CARGO_BIN_EXE_rdsend")),
    ] {
        install(Path::new(path), &place.path(name));
    }
    // The stages connect by the names of their hosts, which need a resolver.
    place.program("rsh", b"#!/bin/sh\nshift\nexec \"$@\"\n");
    let lines = [
        "./rdcp -q f copied",
        "./rdcat :f",
        "./rdpipe -q ':cat f' ':cat > by-a-command'",
        "./rdpipe -q ':< f' ':> written'",
        "./rdpipe -q --rsh ./rsh --remote-rdpipe ./rdpipe 'h1:cat f' 'h2:cat > at-another-host'",
        "./rdsend localhost 1 key12345678",
    ];
    for limit in (0..=TOO_FEW).chain([ENOUGH]) {
        for line in lines {
            if line.contains("rdsend") && limit > 2 {
                // It has the thread of the resolver, and tries for seconds to connect.
                continue;
            }
            if line.contains("rsh") && ![13, ENOUGH].contains(&limit) {
                // A name that cannot be looked up is tried for a second.
                continue;
            }
            let limits = format!("--nproc={limit}:{limit}");
            let user = format!("--reuid={USER}");
            let script = format!("cd '{}' && exec {line}", place.directory().display());
            let setup = program("/usr/bin/env", "a user with few threads");
            let setup = setup.args(["prlimit", &limits, "setpriv", &user]);
            let setup = setup.args(["--clear-groups", "sh", "-c", &script]);
            let end = setup.start().end();
            let text = &end.stderr;
            assert!(!text.contains("panicked"), "{line}, {limit}:\n{text}");
            assert!(
                end.code() == 0 || !text.is_empty(),
                "{line} failed without a sentence, at {limit}"
            );
        }
    }
    for name in ["copied", "written"] {
        assert_eq!(place.read(name), b"data\n", "{ENOUGH} are too few");
    }
}
