//! Which connections are redirected, and where.

use std::{io::Read, net::TcpListener, os::unix::net::UnixListener, thread};

use super::fake::{ECHO, ECHO_V6, Fake};

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
