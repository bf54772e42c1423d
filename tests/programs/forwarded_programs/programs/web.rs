//! A web server, and its clients.

use std::{path::PathBuf, process::Command, sync::LazyLock, time::Duration};

use super::{
    rig::{NEAR, Rig, lacks},
    ways::Way,
};
use crate::support::programs::{install, servers};

/// A function of bash that prints one digest of the files `large`, `small/1` to `small/100` and `deep/er/byte` in a
/// folder.
const DIGEST: &str =
    "digest() { (cd $1; sha256sum large small/* deep/er/byte deep/empty) | sha256sum; }\n";

/// A function of bash that gets these files by curl with these options, eight at a time and each of them three times.
const GET: &str = "\
get() {\n\
    for folder in one two three; do\n\
    mkdir $folder\n\
    for name in large deep/empty deep/er/byte $(seq -f small/%g 100); do\n\
    printf 'url = \"http://%s/%s\"\\noutput = \"%s/%s\"\\n' $1 $name $folder $name\n\
    done >list\n\
    curl -sS --fail --create-dirs --parallel --parallel-max 8 --config list ${@:2}\n\
    digest $folder\n\
    done\n\
}\n";

/// Gets files with curl, and loads nginx with hey.
pub(crate) fn nginx(rig: &Rig, way: Way) {
    if lacks(&["nginx", "curl", "hey"]) {
        return;
    }
    let server = rig.serve(&servers::nginx(way.address(), rig.sizes.bytes));
    let tunnel = rig.open(way, 8080);
    let (connections, requests) = (rig.sizes.connections, rig.sizes.requests);
    let script = format!(
        "{DIGEST}{GET}\
         get $HOST:$PORT\n\
         hey -n {requests} -c {connections} -t 120 http://$HOST:$PORT/small/40\n\
         hey -n {} -c {} -t 120 -disable-keepalive http://$HOST:$PORT/deep/er/byte\n",
        requests / 4,
        connections / 10
    );
    let said = tunnel.client(Duration::ZERO, &script);
    println!("{said}");
    let digest = rig.beside(server.directory(), &format!("{DIGEST} digest tree\n"));
    assert!(said.starts_with(&digest.repeat(3)), "{digest}");
    assert!(!said.contains("Error distribution"), "{said}");
    for requests in [requests, requests / 4] {
        let answers = format!("[200]\t{requests} responses");
        assert!(said.contains(&answers), "{answers}:\n{said}");
    }
    tunnel.close();
    server.stop();
}

/// Gets files with curl through the SOCKS proxy of the tunnel. Only the far host knows its own name.
pub(crate) fn curl(rig: &Rig, way: Way) {
    if lacks(&["nginx", "curl"]) {
        return;
    }
    let server = rig.serve(&servers::nginx(way.address(), rig.sizes.bytes));
    let tunnel = rig.open(way, 8080);
    let script = format!("{DIGEST}{GET} get $NAME:8080 --proxy $PROXY\n");
    let said = tunnel.client(Duration::ZERO, &script);
    let digest = rig.beside(server.directory(), &format!("{DIGEST} digest tree\n"));
    assert_eq!(said, digest.repeat(3));
    tunnel.close();
    server.stop();
}

/// Opens many connections to nginx before the first request, with a static program of Go, and checks every byte of
/// every answer.
pub(crate) fn a_thousand_connections(rig: &Rig, way: Way) {
    if lacks(&["nginx", "go"]) {
        return;
    }
    let server = rig.serve(&servers::nginx(way.address(), rig.sizes.bytes));
    let tunnel = rig.open(way, 8080);
    let program = rig.network.file(NEAR, "crowd");
    install(&CROWD, &program);
    let connections = rig.sizes.connections;
    let script = format!(
        "{} $HOST:$PORT {connections} 5 /small/40 /count\n",
        program.display()
    );
    let said = tunnel.client(Duration::ZERO, &script);
    println!("{said}");
    let digest = rig.beside(server.directory(), "sha256sum <tree/small/40\n");
    let digest = digest.split(' ').next().expect("a digest");
    let expected = format!("{} answers of {digest}", connections * 5);
    assert!(said.contains(&expected), "{expected}:\n{said}");
    // nginx counts the connections that it has while all of them are open.
    let open = said.split("Active connections: ").nth(1);
    let open = open.and_then(|text| text.split_whitespace().next());
    let open: usize = open.and_then(|text| text.parse().ok()).expect("a count");
    assert!(open >= connections, "{open} of {connections}");
    tunnel.close();
    server.stop();
}

/// The path of the static program of Go, which is built once.
static CROWD: LazyLock<PathBuf> = LazyLock::new(|| {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let program = target.join("crowd");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/forwarded_programs/crowd.go"
    );
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(source)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-buildvcs=false")
        .env("GOCACHE", target.join("go"))
        .env("GOPATH", target.join("gopath"))
        .output();
    let built = built.expect("go");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "go build: {said}");
    let shown = Command::new("readelf").arg("-l").arg(&program).output();
    let shown = String::from_utf8_lossy(&shown.expect("readelf").stdout).into_owned();
    assert!(shown.contains("LOAD"), "{shown}");
    assert!(!shown.contains("INTERP"), "it is not static: {shown}");
    program
});
