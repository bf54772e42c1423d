//! How programs start and end.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::Command,
};

use rustix::process::{Signal, kill_process};

use super::fake::{Fake, end};
use crate::forward::redirect::{RedirectedCommand, StartError};

#[tokio::test]
async fn the_status_of_the_program_is_returned() {
    let fake = Fake::new();
    let status = fake.run("sh", &["-c", "exit 7"]).await;
    assert_eq!(status.code(), Some(7));
    let status = fake.run("sh", &["-c", "kill -TERM $$"]).await;
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
}

#[tokio::test]
async fn arguments_are_passed_unchanged() {
    let fake = Fake::new();
    let script = r#"[ "$#:$1:$2" = '2:a  b:$HOME' ]"#;
    let status = fake.run("sh", &["-c", script, "sh", "a  b", "$HOME"]).await;
    assert!(status.success());
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_not_found() {
    let error = start_error("/nonexistent/program");
    assert!(matches!(&error, StartError::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/program"));
    let error = start_error("no-such-program-in-path");
    assert!(matches!(&error, StartError::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_file_without_permission_cannot_be_executed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = start_error(file.path().to_str().unwrap());
    assert!(matches!(error, StartError::CannotExecute { .. }), "{error}");
    let error = start_error("/");
    assert!(matches!(error, StartError::CannotExecute { .. }), "{error}");
}

#[tokio::test]
async fn killing_the_program_drops_what_is_being_opened() {
    let fake = Fake::new();
    let command = fake.start("bash", &["-c", "exec 3<>/dev/tcp/192.0.2.3/80"]);
    fake.until_live(1).await;
    kill_process(command.pid().unwrap(), Signal::KILL).unwrap();
    // While the supervisor still runs.
    fake.until_live(0).await;
    assert_eq!(end(command).await.signal(), Some(Signal::KILL.as_raw()));
    fake.release();
    assert_eq!(fake.opened(), 0);
    assert!(fake.attached().is_empty());
}

#[tokio::test]
async fn a_fatal_signal_ends_a_program_that_connects() {
    let fake = Fake::new();
    let command = fake.start("bash", &["-c", "exec 3<>/dev/tcp/192.0.2.3/80"]);
    fake.until_live(1).await;
    kill_process(command.pid().unwrap(), Signal::TERM).unwrap();
    assert_eq!(end(command).await.signal(), Some(Signal::TERM.as_raw()));
    fake.until_live(0).await;
}

#[tokio::test]
async fn killing_the_program_closes_its_connections() {
    let fake = Fake::new();
    let script = "exec 3<>/dev/tcp/192.0.2.1/80; exec 4<>/dev/tcp/192.0.2.3/80";
    let command = fake.start("bash", &["-c", script]);
    fake.until(|seen| seen.begun == 2).await;
    fake.until_live(2).await;
    kill_process(command.pid().unwrap(), Signal::KILL).unwrap();
    fake.until_live(0).await;
    end(command).await;
}

#[tokio::test]
async fn a_child_that_outlives_the_program_is_still_redirected() {
    let fake = Fake::new();
    let script = "(exec 3<>/dev/tcp/192.0.2.3/80; exec 4<>/dev/tcp/192.0.2.1/81) & exit 3";
    let mut command = fake.start("bash", &["-c", script]);
    assert_eq!(command.wait().await.unwrap().code(), Some(3));
    fake.until_live(1).await;
    fake.release();
    fake.until(|seen| seen.attached.len() == 2).await;
    command.ended().await;
    fake.until_live(0).await;
}

#[tokio::test]
async fn connect_fails_after_the_redirection_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (go, result) = (path("go"), path("result"));
    let made = Command::new("mkfifo").args([&go, &result]).status();
    assert!(made.unwrap().success());
    let fake = Fake::new();
    // The pipe is opened for both directions, so that neither end waits for the other.
    let script = "exec 5<>\"$1\" 6<>\"$2\"; read -r line <&5
        LC_ALL=C; exec 2>&6; echo >/dev/tcp/127.0.0.1/1";
    let command = fake.start("bash", &["-c", script, "bash", &go, &result]);
    let [go, result] = [go, result].map(|path| {
        let mut both = fs::OpenOptions::new();
        both.read(true).write(true).open(path).unwrap()
    });
    drop(command);
    std::io::Write::write_all(&mut &go, b"go\n").unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(result));
        lines.next().unwrap().unwrap()
    });
    let line = line.await.unwrap();
    assert!(line.contains("Function not implemented"), "{line}");
}

#[tokio::test]
async fn a_redirected_program_cannot_redirect_again() {
    // Runs this test again within a redirected program.
    const NAME: &str = "forward::redirect::tests::ends::a_redirected_program_cannot_redirect_again";
    if std::env::args().any(|argument| argument == "--include-ignored") {
        let error = start_error("true");
        assert!(matches!(error, StartError::Unusable(_)), "{error}");
        assert!(error.to_string().contains("already redirected"), "{error}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let args = ["--exact", NAME, "--include-ignored", "--nocapture"];
    let status = Fake::new().run(this.to_str().unwrap(), &args).await;
    assert!(status.success(), "{status}");
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_32_bit_program_runs() {
    /// An ELF header, one program header, and `mov $1,%eax; mov $42,%ebx; int $0x80`, loaded at 0x10000.
    const PROGRAM: &[u8] = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\
        \x02\0\x03\0\x01\0\0\0\x54\0\x01\0\x34\0\0\0\0\0\0\0\0\0\0\0\x34\0\x20\0\x01\0\0\0\0\0\0\0\
        \x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01\0\x60\0\0\0\x60\0\0\0\x05\0\0\0\0\x10\0\0\
        \xb8\x01\0\0\0\xbb\x2a\0\0\0\xcd\x80";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    // Copied by another process: a thread that forks while this one writes would hold the file open, and keep it from
    // being executed.
    let source = folder.path().join("source");
    fs::write(&source, PROGRAM).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    let copied = Command::new("cp")
        .args(["-p"])
        .arg(&source)
        .arg(&path)
        .status();
    assert!(copied.unwrap().success());
    let plain = Command::new(&path).status();
    if !plain.is_ok_and(|status| status.code() == Some(42)) {
        println!("SKIPPED: this kernel runs no 32-bit programs");
        return;
    }
    let status = Fake::new().run(path.to_str().unwrap(), &[]).await;
    assert_eq!(status.code(), Some(42), "{status}");
}

fn start_error(program: &str) -> StartError {
    RedirectedCommand::start(Command::new(program), Fake::new()).expect_err("no such program")
}
