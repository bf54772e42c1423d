//! What ssh does with statuses, signals, stdin, stdout, stderr and command lines, rdsh does too: each script runs once
//! with each, and status, stdout and stderr are compared.

use super::script;
use crate::support::programs::hosts::Network;

/// Scripts of bash in which `$R` is ssh or rdsh. A `$1` of a signal waits for the command that it interrupts.
const CASES: &[(&str, &str)] = &[
    ("success", "$R h1 true"),
    ("a status", "$R h1 exit 3"),
    ("the status of trouble", "$R h1 'exit 255'"),
    (
        "a signal kills the command",
        "$R h1 'echo before; kill -9 $$'",
    ),
    (
        "a signal kills a child",
        "$R h1 'sh -c \"kill -TERM \\$\\$\"; exit $?'",
    ),
    (
        "two statuses of a pipeline",
        "$R h1 'exit 4' | $R h1 'cat; exit 5'; echo ${PIPESTATUS[@]}",
    ),
    ("many bytes to a command", "seq 300000 | $R h1 cksum"),
    ("many bytes from a command", "$R h1 'seq 300000' | cksum"),
    (
        "binary data both ways",
        "seq 100000 | gzip -nc | $R h1 'tee >(cksum >&2); sleep 0.2' | gunzip | cksum",
    ),
    (
        "every byte",
        "$R h1 'for b in {0..255}; do printf \"\\\\x$(printf %x $b)\"; done'",
    ),
    ("stdin is closed", "$R h1 'cat; exit 4' <&-"),
    ("stdin is /dev/null", "$R h1 'cat; exit 4' </dev/null"),
    ("stdin is a file", "seq 9000 >f; $R h1 cksum <f"),
    ("-n gives no stdin", "echo input | { $R -n h1 cat; cat; }"),
    (
        "the end of stdin arrives",
        "echo x | $R h1 'cat; echo after'",
    ),
    (
        "stdin stays open after the command",
        "mkfifo f; exec 3<>f; $R h1 'echo out; exit 9' <&3",
    ),
    (
        "a command that does not read",
        "yes | $R h1 'head -n 1; exit 7'; echo ${PIPESTATUS[@]}",
    ),
    (
        "a loop reads its own lines",
        "seq 3 | while read l; do $R -n h1 echo $l; done",
    ),
    (
        "a dialogue",
        "coproc $R h1 'while read l; do echo \"<$l>\"; done; exit 6'
        for w in one two three; do echo $w >&${COPROC[1]}; read -r a <&${COPROC[0]}; echo $a; done
        p=$COPROC_PID; exec {COPROC[1]}>&-; wait $p",
    ),
    (
        "stdout is closed early",
        "$R h1 yes | head -n 1; echo ${PIPESTATUS[0]}",
    ),
    (
        "stdout is closed from the start",
        "$R h1 'echo hi; exit 3' >&-",
    ),
    (
        "the command closes its stdout",
        "echo in | $R h1 'echo out; exec >&-; cat >&2; exit 5'",
    ),
    (
        "stdout and stderr",
        "$R h1 'echo out; echo err >&2; exit 1'",
    ),
    (
        "a large stderr",
        "$R h1 'seq 300000 >&2' 2>&1 >/dev/null | cksum",
    ),
    (
        "a stderr of progress",
        "$R h1 'printf \"a\\rb\\r\\tno end\" >&2'",
    ),
    (
        "stderr is closed",
        "$R h1 'echo err >&2; echo out; exit 4' 2>&-",
    ),
    ("a host that is missing", "$R nosuch.invalid true"),
    ("a port without sshd", "$R -p 1 h1 true"),
    (
        "a user without a key",
        "$R -o IdentityFile=/nowhere -i /nowhere -F /dev/null -oStrictHostKeyChecking=no \
        -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR -oBatchMode=yes 10.77.0.1 true",
    ),
    ("an option that ssh refuses", "$R -o NoSuchOption=1 h1 true"),
    ("a command that is missing", "$R h1 nosuchcommand"),
    ("a command that is a folder", "$R h1 /"),
    ("a syntax error", "$R h1 'if'"),
    (
        "quotes",
        "$R h1 echo \"'a   b'\" '\"$HOSTNAME\"' '\\$x' \"it's\" \"'\"",
    ),
    (
        "globs and words",
        "$R h1 'cd /; echo b[i]n *.none \"b*n\"' 'a  b;' echo c",
    ),
    (
        "lines in a command",
        "$R h1 'echo a\necho b # comment\n\necho c'",
    ),
    ("empty words", "$R h1 echo '' x ''"),
    (
        "no locale, no variables",
        "FOO=1 $R h1 'env | grep -v \"^SSH_C\\|^_=\" | sort; echo $0 $-; umask; pwd'",
    ),
    (
        "options behind the host",
        "$R h1 -l root -q -4 -o ConnectTimeout=9 -- echo -l x",
    ),
    (
        "another user",
        "$R -l guest h1 'id -un; ulimit -n'; $R guest@h1 id -un",
    ),
    ("a URL", "$R ssh://root@h1:22 'echo x'"),
    ("a terminal", "$R -tt h1 'tty | cut -c1-9; exit 3' 2>&1"),
    ("questions to ssh", "$R -G h1 | head -n 3; $R -V"),
    (
        "output after the command",
        "$R h1 '(sleep 0.3; echo late; echo late >&2) & echo early; exit 2'",
    ),
    (
        "stderr after the command",
        "$R h1 '(sleep 0.3; echo late >&2) >/dev/null & echo early'",
    ),
    (
        "a daemon goes on",
        "$R h1 'sleep 300 >/dev/null 2>&1 </dev/null & echo $! >daemon'
        $R h1 'kill $(cat daemon) && echo it was there'",
    ),
    (
        "SIGINT",
        "mkfifo f; env --default-signal=INT $R h1 'echo up; exec sleep 60' >f & read -r l <f; kill -INT $!; wait $!",
    ),
    (
        "SIGTERM",
        "mkfifo f; $R h1 'echo up; exec sleep 60' >f & read -r l <f; kill -TERM $!; wait $!",
    ),
    (
        "SIGHUP",
        "mkfifo f; $R h1 'echo up; exec sleep 60' >f & read -r l <f; kill -HUP $!; wait $!",
    ),
    (
        "SIGKILL",
        "mkfifo f; $R h1 'echo up; exec sleep 60' >f & read -r l <f; kill -KILL $!; wait $! 2>/dev/null",
    ),
];

#[test]
fn each_case_ends_as_with_ssh() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let mut wrong = Vec::new();
    for (name, line) in CASES {
        let [ssh, rdsh] = [true, false].map(|is_ssh| script(&network, is_ssh, line).start().end());
        let said = |end: &crate::support::programs::End| {
            let name = |text: String| text.replace(crate::support::programs::hosts::SSH, "ssh");
            let out = String::from_utf8_lossy(&end.stdout).into_owned();
            (end.code(), out, name(end.stderr.clone()))
        };
        let (ssh, rdsh) = (said(&ssh), said(&rdsh));
        if ssh != rdsh {
            wrong.push(format!("{name}: {line}\nssh: {ssh:?}\nrdsh: {rdsh:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
