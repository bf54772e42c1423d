//! Programs with the filter: what they see of their sockets and of `connect()`, which connections are redirected and
//! where, and how programs start and end.

mod fake;

use std::{
    fs,
    io::Read,
    net::TcpListener,
    os::unix::{fs::PermissionsExt, net::UnixListener, process::ExitStatusExt},
    process::Command,
    thread,
};

use rustix::process::{Signal, kill_process};

use self::fake::{ECHO, ECHO_V6, Fake, end};
use super::{RedirectedCommand, StartError};

/// Runs a Python program, whose connections have all ended at its end.
async fn run_python(code: &str) {
    let fake = Fake::new();
    fake.python(code).await;
    fake.until_live(0).await;
}

#[tokio::test]
async fn a_refused_connection_has_its_errno() {
    run_python(
        "s = socket(AF_INET, SOCK_STREAM)
assert error_of(s.connect, ('192.0.2.2', 80)) == 'ECONNREFUSED'
assert s.getsockopt(SOL_SOCKET, SO_ERROR) == 0
s.connect(('192.0.2.1', 80)); echoes(s)",
    )
    .await;
}

/// Before, the connection failed after some seconds: no door can be reached from another device.
#[tokio::test]
async fn a_socket_that_is_bound_to_a_device_is_redirected_or_refused_at_once() {
    run_python(
        "for _, device in [(0, 'lo')] + if_nameindex():
    s = socket(AF_INET, SOCK_STREAM)
    try: s.setsockopt(SOL_SOCKET, SO_BINDTODEVICE, device.encode())
    except OSError: continue
    try: s.connect(('192.0.2.1', 80)); echoes(s)
    except PermissionError: assert device != 'lo' and os.geteuid() != 0",
    )
    .await;
}

#[tokio::test]
async fn a_non_blocking_socket_finds_the_errno_as_its_error() {
    run_python(
        "for address, name in (('192.0.2.2', 'ECONNREFUSED'), ('192.0.2.5', 'EHOSTUNREACH')) * 50:
    s = socket(AF_INET, SOCK_STREAM); s.setblocking(False)
    assert error_of(s.connect, (address, 80)) == 'EINPROGRESS'
    assert select.select([], [s], [], 60)[1]
    assert errno.errorcode[s.getsockopt(SOL_SOCKET, SO_ERROR)] == name
    assert s.getsockopt(SOL_SOCKET, SO_ERROR) == 0
s.setblocking(True); s.connect(('192.0.2.1', 80)); echoes(s)
s = socket(AF_INET, SOCK_STREAM); s.setblocking(False)
assert error_of(s.connect, ('192.0.2.2', 80)) == 'EINPROGRESS'
select.select([], [s], [], 60)
assert error_of(s.connect, ('192.0.2.2', 80)) == 'ECONNREFUSED'",
    )
    .await;
}

#[tokio::test]
async fn a_non_blocking_connect_returns_at_once() {
    let fake = Fake::new();
    let code = "s = socket(AF_INET, SOCK_STREAM); s.setblocking(False)
assert error_of(s.connect, ('192.0.2.3', 80)) == 'EINPROGRESS'
assert error_of(s.connect, ('192.0.2.3', 80)) == 'EALREADY'
assert not select.select([s], [s], [s], 0)[1]
assert s.getsockopt(SOL_SOCKET, SO_ERROR) == 0
assert error_of(s.getpeername) == 'ENOTCONN'
for _ in range(3):
    t = socket(AF_INET, SOCK_STREAM); t.connect(('192.0.2.1', 80)); echoes(t); t.close()
closed = socket(AF_INET, SOCK_STREAM); closed.setblocking(False)
assert error_of(closed.connect, ('192.0.2.3', 81)) == 'EINPROGRESS'
closed.close()
t = socket(AF_INET, SOCK_STREAM); t.connect(('192.0.2.1', 81)); echoes(t)
assert select.select([], [s], [], 60)[1]
assert s.getsockopt(SOL_SOCKET, SO_ERROR) == 0
echoes(s)";
    let Some(command) = fake.start_python(code) else {
        return;
    };
    // The program has gone on although two connections are being opened.
    fake.until(|seen| seen.attached.len() == 4).await;
    fake.release();
    assert!(end(command).await.success());
}

#[tokio::test]
async fn a_connection_that_is_made_at_once_loses_no_byte() {
    run_python(
        "for _ in range(200):
    s = socket(AF_INET, SOCK_STREAM); s.setblocking(False)
    assert error_of(s.connect, ('192.0.2.1', 80)) == 'EINPROGRESS'
    if os.fork() == 0:
        select.select([], [s], [], 60); s.send(b'x'); os._exit(0)
    os.wait()
    s.setblocking(True); assert s.recv(1) == b'x'",
    )
    .await;
}

#[tokio::test]
async fn the_address_of_the_peer_leads_to_the_same_host() {
    let fake = Fake::new();
    fake.python(
        "control = socket(AF_INET, SOCK_STREAM); control.connect(('192.0.2.1', 21))
data = socket(AF_INET, SOCK_STREAM); data.connect((control.getpeername()[0], 5000))
echoes(data); echoes(control)",
    )
    .await;
    assert_eq!(fake.attached(), ["192.0.2.1:21", "192.0.2.1:5000"]);
    fake.until_live(0).await;
}

#[tokio::test]
async fn epoll_works_as_after_any_connect() {
    let fake = Fake::new();
    fake.python(
        "s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK)
e = select.epoll()
e.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
e.poll(0)
assert s.connect_ex(('192.0.2.1', 80)) == errno.EINPROGRESS
assert e.poll(60)[0][1] & select.EPOLLOUT
assert s.getsockopt(SOL_SOCKET, SO_ERROR) == 0
# The first call notices that the connection is there.
assert s.connect_ex(('192.0.2.1', 80)) in (0, errno.EISCONN)
assert s.connect_ex(('192.0.2.1', 80)) == errno.EISCONN
s.send(b'hello')
while not e.poll(60)[0][1] & select.EPOLLIN: pass
assert s.recv(5) == b'hello'
echoes(s)",
    )
    .await;
    fake.until_live(0).await;
}

#[tokio::test]
async fn options_that_were_set_before_survive() {
    run_python(
        "s = socket(AF_INET, SOCK_STREAM)
s.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
s.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
s.setsockopt(SOL_SOCKET, SO_RCVBUF, 100000)
s.setsockopt(IPPROTO_TCP, 30, 1) # TCP_FASTOPEN_CONNECT
s.bind(('127.0.0.5', 0))
bound = s.getsockname()
s.connect(('192.0.2.1', 80))
assert s.getsockname() == bound
assert s.getsockopt(SOL_SOCKET, SO_KEEPALIVE) == 1
assert s.getsockopt(IPPROTO_TCP, TCP_NODELAY) == 1
assert s.getsockopt(SOL_SOCKET, SO_RCVBUF) == 200000
assert s.getblocking()
echoes(s)",
    )
    .await;
}

#[tokio::test]
async fn wrong_calls_have_the_errors_of_the_kernel() {
    run_python(
        "libc = ctypes.CDLL(None, use_errno=True)
def raw(fd, address, length):
    assert libc.connect(fd, address, length) == -1
    return errno.errorcode[ctypes.get_errno()]
address = struct.pack('=H', AF_INET) + struct.pack('>H', 80) + inet_aton('192.0.2.1') + bytes(8)
s = socket(AF_INET, SOCK_STREAM)
assert raw(99, address, 16) == 'EBADF'
assert raw(-1, address, 16) == 'EBADF'
assert raw(0 if os.fstat(0).st_mode & 0o170000 != 0o140000 else 99, address, 16) in ('ENOTSOCK', 'EBADF')
assert raw(s.fileno(), ctypes.c_void_p(1), 16) == 'EFAULT'
assert raw(s.fileno(), address, 8) == 'EINVAL'
assert raw(s.fileno(), address, -1) == 'EINVAL'
assert raw(s.fileno(), address + bytes(113), 129) == 'EINVAL'
s.connect(('192.0.2.1', 80))
assert error_of(s.connect, ('192.0.2.1', 80)) == 'EISCONN'
echoes(s)
l = socket(AF_INET, SOCK_STREAM); l.bind(('127.0.0.1', 0)); l.listen()
assert error_of(l.connect, ('192.0.2.1', 80)) == 'EISCONN'",
    )
    .await;
}

#[tokio::test]
async fn the_send_timeout_limits_a_connect() {
    let fake = Fake::new();
    fake.python(
        "s = socket(AF_INET, SOCK_STREAM)
s.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack('ll', 0, 50000))
assert error_of(s.connect, ('192.0.2.3', 80)) == 'EINPROGRESS'",
    )
    .await;
    fake.until_live(0).await;
    assert_eq!(fake.opened(), 0);
}

#[tokio::test]
async fn closing_ends_the_connection() {
    let fake = Fake::new();
    let code = "s = socket(AF_INET, SOCK_STREAM); s.connect(('192.0.2.1', 80)); s.close()
s = socket(AF_INET, SOCK_STREAM); s.connect(('192.0.2.3', 80)); echoes(s)";
    let Some(command) = fake.start_python(code) else {
        return;
    };
    // The second connection is being opened, and the first one has ended although the program lives.
    fake.until(|seen| seen.begun == 2 && seen.live == 1).await;
    fake.release();
    assert!(end(command).await.success());
}

#[tokio::test]
async fn mptcp_sockets_are_redirected() {
    let fake = Fake::new();
    fake.python(
        "try:
    s = socket(AF_INET, SOCK_STREAM, 262)
except OSError as error:
    print('SKIPPED: no MPTCP here:', error)
else:
    s.connect(('192.0.2.1', 80)); echoes(s)",
    )
    .await;
    fake.until_live(0).await;
}

#[tokio::test]
async fn two_hundred_threads_connect_at_once() {
    let fake = Fake::with_barrier(200);
    let ran = fake
        .python(
            "done = []
def run():
    s = socket(AF_INET, SOCK_STREAM); s.connect(('192.0.2.4', 80)); echoes(s); done.append(1)
threads = [threading.Thread(target=run) for _ in range(200)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 200, len(done)",
        )
        .await;
    if ran {
        assert_eq!(fake.attached().len(), 200);
    }
    fake.until_live(0).await;
}

#[tokio::test]
async fn other_calls_go_on_while_one_waits() {
    let fake = Fake::new();
    let code = "waiting = socket(AF_INET, SOCK_STREAM)
thread = threading.Thread(target=waiting.connect, args=(('192.0.2.3', 80),)); thread.start()
for _ in range(20):
    s = socket(AF_INET, SOCK_STREAM); s.connect(('192.0.2.1', 80)); echoes(s); s.close()
s = socket(AF_INET, SOCK_STREAM); s.connect(('192.0.2.4', 80)); echoes(s)
thread.join(); echoes(waiting)";
    let Some(command) = fake.start_python(code) else {
        return;
    };
    fake.until(|seen| seen.attached.len() == 21).await;
    fake.release();
    assert!(end(command).await.success());
    assert_eq!(fake.attached().last().unwrap(), "192.0.2.3:80");
}

#[tokio::test]
async fn a_signal_interrupts_connect_and_the_connection_goes_on() {
    let fake = Fake::new();
    // Without `SA_RESTART`, which `siginterrupt` switches, the call fails; with it the call waits again.
    let code = "handled = []
libc = ctypes.CDLL(None, use_errno=True)
address = struct.pack('=H', AF_INET) + struct.pack('>H', 80) + inet_aton('192.0.2.3') + bytes(8)
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
signal.siginterrupt(signal.SIGUSR1, True)
s = socket(AF_INET, SOCK_STREAM)
assert libc.connect(s.fileno(), address, 16) == -1 and ctypes.get_errno() == errno.EINTR
assert handled
signal.siginterrupt(signal.SIGUSR1, False)
t = socket(AF_INET, SOCK_STREAM); t.connect(('192.0.2.1', 80)); t.close()
assert libc.connect(s.fileno(), address, 16) == 0
echoes(s)";
    let Some(command) = fake.start_python(code) else {
        return;
    };
    fake.until_live(1).await;
    let pid = command.pid().unwrap();
    // The program may not have reached the call's wait, so the signal is sent until it has an effect.
    while fake.attached().is_empty() {
        kill_process(pid, Signal::USR1).unwrap();
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        kill_process(pid, Signal::USR1).unwrap();
        tokio::task::yield_now().await;
    }
    fake.release();
    assert!(end(command).await.success());
    assert_eq!(fake.attached().last().unwrap(), "192.0.2.3:80");
    assert_eq!(fake.opened(), 2);
}

#[tokio::test]
async fn a_program_reaches_a_covered_address() {
    let fake = Fake::new();
    fake.bash(
        "exec 3<>/dev/tcp/192.0.2.1/5432; echo hello >&3; read -r line <&3; [ $line = hello ]",
    )
    .await;
    assert_eq!(fake.attached(), [format!("{ECHO}:5432")]);
    fake.until_live(0).await;
}

#[tokio::test]
async fn bytes_that_are_written_before_the_program_exits_arrive() {
    let fake = Fake::new();
    fake.bash("echo hello >/dev/tcp/192.0.2.1/1").await;
    // Without waiting: a connection is attached before connect() returns.
    assert_eq!(fake.attached(), [format!("{ECHO}:1")]);
    fake.until_live(0).await;
}

#[tokio::test]
async fn children_and_their_children_are_redirected() {
    let fake = Fake::new();
    let talk = "exec 3<>/dev/tcp/192.0.2.1/7; echo $$ >&3; read -r line <&3; [ $line = $$ ]";
    fake.bash(&format!(
        "for i in 1 2 3; do bash -c 'bash -c \"$1\" & wait $!' - '{talk}' & jobs+=($!); done
         for job in ${{jobs[@]}}; do wait $job; done
         setsid bash -c '{talk}'"
    ))
    .await;
    assert_eq!(fake.attached().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_covered_is_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let mut text = String::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_string(&mut text).unwrap();
        let (mut stream, _) = unix.accept().unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let fake = Fake::new();
    let ran = fake
        .python(&format!(
            "s = socket(AF_INET, SOCK_STREAM)
s.connect(('127.0.0.1', {port}))
assert s.getpeername() == ('127.0.0.1', {port})
s.sendall(b'tcp '); s.close()
u = socket(AF_UNIX, SOCK_STREAM); u.connect({path:?}); u.sendall(b'unix'); u.close()"
        ))
        .await;
    if ran {
        assert_eq!(server.join().unwrap(), "tcp unix");
    }
    assert_eq!(fake.opened(), 0);
}

#[tokio::test]
async fn a_udp_socket_is_left_alone() {
    let fake = Fake::new();
    fake.python(
        "s = socket(AF_INET, SOCK_DGRAM)
s.connect(('127.9.9.9', 53))
assert s.getpeername() == ('127.9.9.9', 53)",
    )
    .await;
    assert_eq!(fake.opened(), 0);
}

#[tokio::test]
async fn ipv6_sockets_are_redirected() {
    let fake = Fake::new();
    let ran = fake
        .python(
            "s = socket(AF_INET6, SOCK_STREAM); s.connect(('2001:db8::1', 80)); echoes(s)
s = socket(AF_INET6, SOCK_STREAM); s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
try:
    bound = socket(AF_INET6, SOCK_STREAM); bound.bind(('::1', 0))
except OSError:
    print('SKIPPED in part: no IPv6 here')
else:
    s.connect(('2001:db8::1', 81)); echoes(s)
s = socket(AF_INET6, SOCK_STREAM); s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
s.connect(('::ffff:192.0.2.1', 82)); echoes(s)",
        )
        .await;
    if ran {
        let attached = fake.attached();
        assert_eq!(attached.first().unwrap(), &format!("[{ECHO_V6}]:80"));
        assert_eq!(attached.last().unwrap(), &format!("{ECHO}:82"));
    }
}

#[tokio::test]
async fn families_that_do_not_agree_are_refused_by_the_kernel() {
    let fake = Fake::new();
    fake.python(
        "libc = ctypes.CDLL(None, use_errno=True)
def raw(s, address):
    assert libc.connect(s.fileno(), address, len(address)) == -1
    return errno.errorcode[ctypes.get_errno()]
v4 = struct.pack('=H', AF_INET) + struct.pack('>H', 80) + inet_aton('192.0.2.1') + bytes(8)
assert raw(socket(AF_INET6, SOCK_STREAM), v4) == 'EINVAL', 'shorter than an IPv6 address'
v4 += bytes(12)
assert raw(socket(AF_INET6, SOCK_STREAM), v4) == 'EAFNOSUPPORT'
s = socket(AF_INET6, SOCK_STREAM); s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
assert error_of(s.connect, ('::ffff:192.0.2.1', 80)) in ('ENETUNREACH', 'EADDRNOTAVAIL')",
    )
    .await;
    assert_eq!(fake.opened(), 0);
}

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
