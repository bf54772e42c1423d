//! What programs do through a tunnel: each body runs a server on one host and its clients on another, and checks every
//! byte that they move, and that nothing fails.

mod rig;

use std::{path::PathBuf, process::Command, sync::LazyLock, time::Duration};

use serde_json::Value;

use self::rig::{NEAR, lacks};
use crate::support::programs::{install, servers};

pub(crate) use rig::{Rig, Way};

/// Moves rows both ways with psql, and loads `PostgreSQL` with pgbench, with lasting connections and with one for each
/// transaction.
pub(crate) fn postgres(rig: &Rig, way: Way) {
    if lacks(&["psql", "pgbench"]) {
        return;
    }
    let server = rig.serve(&servers::postgres(way.address()));
    let tunnel = rig.open(way, 5432);
    let rows = rig.sizes.bytes / 100;
    let (clients, seconds) = (rig.sizes.clients, rig.sizes.seconds);
    let query = format!(
        "select g, md5(g::text), repeat(md5((g + 1)::text), 2) from generate_series(1, {rows}) g"
    );
    let environment = "export PGUSER=postgres PGDATABASE=postgres PGCONNECT_TIMEOUT=60\n";
    let script = format!(
        "{environment} export PGHOST=$HOST PGPORT=$PORT\n\
         psql -qAtc \"copy ({query}) to stdout\" | tee rows | sha256sum\n\
         psql -qAtc 'create table rows (number int, digest text, text text)'\n\
         psql -qAtc '\\copy rows from rows'\n\
         pgbench -iqs 1 2>/dev/null\n\
         echo lasting; pgbench -n -c {clients} -j 2 -T {seconds}\n\
         psql -qAtc 'select count(*) from pgbench_history'\n\
         echo short; pgbench -n -S -C -c {} -j 2 -T {}\n",
        clients.div_ceil(5),
        seconds.div_ceil(2)
    );
    let said = tunnel.client(Duration::from_secs(seconds * 2), &script);
    println!("{said}");
    let (lasting, short) = said.split_once("short\n").expect("both loads ran");
    for load in [lasting, short] {
        let failed = "number of failed transactions: 0 (0.000%)";
        assert!(load.contains(failed), "{load}");
        assert!(processed(load) > 0, "{load}");
    }
    let counted = lasting.lines().last().expect("the count of the history");
    assert_eq!(counted, processed(lasting).to_string());
    // The digests of what was sent and received, and the sums that TPC-B keeps equal, seen from beside the server.
    let beside = format!(
        "{environment} export PGHOST=127.0.0.1\n\
         psql -qAtc \"copy ({query}) to stdout\" | sha256sum\n\
         psql -qAtc 'copy (select * from rows order by number) to stdout' | sha256sum\n\
         psql -qAtc 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),\
         (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)'\n"
    );
    let digest = said.lines().next().expect("a digest");
    let beside = rig.beside(server.directory(), &beside);
    let lines: Vec<_> = beside.lines().collect();
    assert_eq!(lines, [digest, digest, "t|t"]);
    tunnel.close();
    server.stop();
}

/// Returns the transactions that pgbench counts.
fn processed(load: &str) -> u64 {
    let after = load.split("transactions actually processed: ").nth(1);
    let digits = after.and_then(|after| after.split(|c: char| !c.is_ascii_digit()).next());
    let number = digits.and_then(|digits| digits.parse().ok());
    number.unwrap_or_else(|| panic!("no count of transactions:\n{load}"))
}

/// Moves a value both ways with redis-cli, and loads Redis with redis-benchmark: one request at a time, many at a time,
/// and one connection for each request.
pub(crate) fn redis(rig: &Rig, way: Way) {
    if lacks(&["redis-server", "redis-benchmark"]) {
        return;
    }
    let server = rig.serve(&servers::redis(way.address()));
    let tunnel = rig.open(way, 6379);
    let (clients, requests) = (rig.sizes.clients, rig.sizes.requests);
    let script = format!(
        "cli='redis-cli -h '$HOST' -p '$PORT\n\
         load='redis-benchmark -h '$HOST' -p '$PORT' --csv'\n\
         head -c {} /dev/urandom >value\n\
         $cli -x set value <value\n\
         $cli --raw get value | head -c -1 | cmp - value\n\
         $load -c {clients} -n {requests} -t ping_mbulk,set,get,lrange_100\n\
         $load -c {clients} -n {} -P 16 -d 1000 -t set,get\n\
         $load -c {clients} -n {} -k 0 -t ping_mbulk\n\
         sha256sum <value\n",
        rig.sizes.bytes / 2,
        requests * 4,
        requests / 10
    );
    let said = tunnel.client(Duration::ZERO, &script);
    println!("{said}");
    let rates = said.lines().filter(|line| line.starts_with('"'));
    let is_rate = |line: &str| {
        let cell = line.split(',').nth(1).unwrap_or_default();
        let rate = cell.trim_matches('"').parse::<f64>();
        rate.is_ok_and(|rate| rate > 0.0)
    };
    // A line for each load, and one with the names of the columns for each of the three calls.
    assert_eq!(rates.filter(|line| is_rate(line)).count(), 8, "{said}");
    let beside = "redis-cli --raw get value | head -c -1 | sha256sum\n";
    let beside = rig.beside(server.directory(), beside);
    assert_eq!(said.lines().last(), beside.lines().next());
    tunnel.close();
    server.stop();
}

/// A function of bash that prints one digest of all files in a folder, and of their names.
const TREE_DIGEST: &str = "digest() { (cd $1; find . -type f -not -path './.git/*' -print0 | sort -z | xargs -0 sha256sum) | sha256sum; }\n";

/// Copies a tree from an rsync daemon and back to it.
pub(crate) fn rsync(rig: &Rig, way: Way) {
    if lacks(&["rsync"]) {
        return;
    }
    let server = rig.serve(&servers::rsync(way.address(), rig.sizes.bytes));
    let tunnel = rig.open(way, 8730);
    let script = format!(
        "{TREE_DIGEST}\
         rsync -a rsync://$HOST:$PORT/tree/ got/\n\
         digest got\n\
         rsync -r got/ rsync://$HOST:$PORT/back/\n\
         rsync -rnc --itemize-changes got/ rsync://$HOST:$PORT/back/\n"
    );
    let said = tunnel.client(Duration::ZERO, &script);
    let beside = format!("{TREE_DIGEST} digest tree; digest back\n");
    let beside = rig.beside(server.directory(), &beside);
    assert_eq!(beside, said.repeat(2));
    tunnel.close();
    server.stop();
}

/// Clones a repository by the git protocol, and pushes a change back.
pub(crate) fn git(rig: &Rig, way: Way) {
    if lacks(&["git"]) {
        return;
    }
    let server = rig.serve(&servers::git(way.address(), rig.sizes.bytes / 5));
    let tunnel = rig.open(way, 9418);
    let script = format!(
        "{TREE_DIGEST}\
         export HOME=$PWD GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t\n\
         git clone -q git://$HOST:$PORT/repository.git work\n\
         digest work\n\
         cd work\n\
         git fsck --full --strict --no-progress\n\
         head -c {} /dev/urandom >change; git add change; git commit -qm change\n\
         git push -q origin HEAD:refs/heads/back\n\
         git rev-parse HEAD HEAD^{{tree}}\n",
        rig.sizes.bytes / 5
    );
    let said = tunnel.client(Duration::ZERO, &script);
    // The repository is that of another user.
    let beside = format!(
        "{TREE_DIGEST} digest work; export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*\n\
         git -C repository.git fsck --full --strict --no-progress\n\
         git -C repository.git rev-parse back back^{{tree}}\n"
    );
    assert_eq!(rig.beside(server.directory(), &beside), said);
    tunnel.close();
    server.stop();
}

/// Runs iperf3 with eight connections at once: to the server, from it, and both ways.
pub(crate) fn iperf(rig: &Rig, way: Way) {
    if lacks(&["iperf3"]) {
        return;
    }
    let server = rig.serve(&servers::iperf(way.address()));
    let tunnel = rig.open(way, 5201);
    let seconds = rig.sizes.seconds.div_ceil(2);
    for (number, direction) in ["", "-R", "--bidir"].into_iter().enumerate() {
        // A client ends before its server has finished with it.
        server.said(&servers::ready_for_test(number + 1));
        let script = format!("iperf3 -c $HOST -p $PORT -P 8 -t {seconds} -J {direction}\n");
        let said = tunnel.client(Duration::from_secs(seconds), &script);
        let report = serde_json::from_str(&said);
        check(
            way,
            &report.unwrap_or_else(|error| panic!("{error}:\n{said}")),
        );
    }
    tunnel.close();
    server.stop();
}

/// Checks that all connections of a test have carried bytes.
fn check(way: Way, report: &Value) {
    assert_eq!(report.get("error"), None, "{report:#}");
    let end = &report["end"];
    let mut sums = vec!["sum_sent", "sum_received"];
    if end.get("sum_sent_bidir_reverse").is_some() {
        sums.extend(["sum_sent_bidir_reverse", "sum_received_bidir_reverse"]);
    }
    for sum in sums {
        let bytes = end[sum]["bytes"].as_f64().unwrap_or_default();
        assert!(bytes > 0.0, "{sum}: {end:#}");
        let rate = end[sum]["bits_per_second"].as_f64().unwrap_or_default();
        println!("{way:?}: {sum} {:.0} MB/s", rate / 8e6);
    }
    for stream in end["streams"].as_array().expect("streams") {
        let bytes = stream["sender"]["bytes"].as_u64().unwrap_or_default();
        assert!(bytes > 0, "a connection carried nothing: {stream:#}");
    }
}

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
