//! Tickets stay secret: they appear in no process list and in no message except the one that prints them.

use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

use crate::support::programs::{
    Place, Running,
    rdcat::{listener, rdcat, ticket},
};

/// Checks that neither the arguments nor the environment of a running process contain the ticket.
#[track_caller]
fn assert_hidden(process: &Running, ticket: &str) {
    for what in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{what}", process.id())).unwrap();
        let shown = String::from_utf8_lossy(&bytes).to_lowercase();
        assert!(!shown.contains(&ticket[..20]), "{what}: {shown}");
    }
}

#[test]
fn a_ticket_is_hidden_from_processes_and_messages() {
    let place = Place::new();
    for way in ["argument", "environment", "file", "public file"] {
        let mut listener = listener("-v").stdin(Stdio::piped()).start();
        let ticket = ticket(&listener);
        let setup = match way {
            "argument" => rdcat("-v").arg(&ticket),
            "environment" => rdcat("-v").env("RDCAT_TICKET", &ticket),
            _ => {
                let file = place.file("ticket", format!("{ticket}\nand more\n").as_bytes());
                let mode = if way == "file" { 0o600 } else { 0o644 };
                fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
                rdcat("-v --ticket-file").arg(file)
            }
        };
        let rdcat = setup.env("RUST_LOG", "trace").start();
        listener.said("that a peer connected", |text| {
            text.contains(" connected from").then_some(())
        });
        assert_hidden(&rdcat, &ticket);
        assert_hidden(&listener, &ticket);
        drop(listener.stdin());
        let (rdcat, listener) = (rdcat.end(), listener.end());
        let said = rdcat.exits(0);
        assert!(!said.contains(&ticket), "{said}");
        assert_eq!(
            said.contains("warning: others can read the ticket file"),
            way == "public file"
        );
        assert_eq!(listener.exits(0).matches(&ticket).count(), 1);
    }
}

#[test]
fn a_ticket_file_that_another_user_can_change_is_refused() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    let place = Place::new();
    let file = place.file("ticket", ticket.as_bytes());
    fs::set_permissions(&file, PermissionsExt::from_mode(0o620)).unwrap();
    let end = rdcat("--ticket-file").arg(file).start().end();
    end.fails(2, &["the ticket file", "others can write it; chmod go= "]);
    assert!(!end.stderr.contains(&ticket));
}

#[test]
fn a_ticket_in_the_wrong_place_is_not_printed() {
    let listener = listener("").start();
    let ticket = ticket(&listener);
    let place = Place::new();
    let short = place.file("short", &ticket.as_bytes()[..40]);
    for setup in [
        rdcat("h1:x").arg(&ticket),
        rdcat("-l").arg(&ticket),
        rdcat("--ticket-file").arg(short),
        rdcat("--ticket-file /no/such/file"),
        rdcat("--ticket-file /dev/zero"),
        rdcat("").env("RDCAT_TICKET", &ticket[..40]),
        rdcat("").env("RDCAT_TICKET", ""),
        rdcat("-l -H some.host"),
        rdcat(format!("rdk1{}", &ticket[4..])),
    ] {
        let end = setup.start().end();
        assert!(!end.exits(2).contains(&ticket[4..20]), "{}", end.stderr);
    }
}
