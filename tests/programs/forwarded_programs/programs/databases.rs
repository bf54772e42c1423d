//! Databases and their clients.

use std::time::Duration;

use super::{
    rig::{Rig, lacks},
    ways::Way,
};
use crate::support::programs::servers;

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
