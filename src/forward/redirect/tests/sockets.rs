//! What a program sees of its socket and of `connect()`.

use rustix::process::{Signal, kill_process};

use super::fake::{Fake, end};

#[tokio::test]
async fn a_refused_connection_has_its_errno() {
    let fake = Fake::new();
    fake.python(
        "s = socket(AF_INET, SOCK_STREAM)
assert error_of(s.connect, ('192.0.2.2', 80)) == 'ECONNREFUSED'
assert s.getsockopt(SOL_SOCKET, SO_ERROR) == 0
s.connect(('192.0.2.1', 80)); echoes(s)",
    )
    .await;
    fake.until_live(0).await;
}

/// Before, the connection failed after some seconds: no door can be reached from another device.
#[tokio::test]
async fn a_socket_that_is_bound_to_a_device_is_redirected_or_refused_at_once() {
    let fake = Fake::new();
    fake.python(
        "for _, device in [(0, 'lo')] + if_nameindex():
    s = socket(AF_INET, SOCK_STREAM)
    try: s.setsockopt(SOL_SOCKET, SO_BINDTODEVICE, device.encode())
    except OSError: continue
    try: s.connect(('192.0.2.1', 80)); echoes(s)
    except PermissionError: assert device != 'lo' and os.geteuid() != 0",
    )
    .await;
    fake.until_live(0).await;
}

#[tokio::test]
async fn a_non_blocking_socket_finds_the_errno_as_its_error() {
    let fake = Fake::new();
    fake.python(
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
    fake.until_live(0).await;
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
    let fake = Fake::new();
    fake.python(
        "for _ in range(200):
    s = socket(AF_INET, SOCK_STREAM); s.setblocking(False)
    assert error_of(s.connect, ('192.0.2.1', 80)) == 'EINPROGRESS'
    if os.fork() == 0:
        select.select([], [s], [], 60); s.send(b'x'); os._exit(0)
    os.wait()
    s.setblocking(True); assert s.recv(1) == b'x'",
    )
    .await;
    fake.until_live(0).await;
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
    let fake = Fake::new();
    fake.python(
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
    fake.until_live(0).await;
}

#[tokio::test]
async fn wrong_calls_have_the_errors_of_the_kernel() {
    let fake = Fake::new();
    fake.python(
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
    fake.until_live(0).await;
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
