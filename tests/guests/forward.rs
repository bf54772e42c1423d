//! Debian's own servers and clients, unmodified, through rdforward between two guests. They need `RDPIPE_FULL=1`, and
//! `--guests 2 --bin target/debug` of `scripts/guests`. `tests/programs/forwarded_programs/mod.rs` lists the settings.

use crate::programs::{self, Rig, Way};

/// Makes a test of a body for a way.
macro_rules! over_rdma {
    ($($test:ident: $body:ident, $way:ident;)+) => {
        $(
            #[test]
            fn $test() {
                if let Some(rig) = Rig::of_guests() {
                    programs::$body(&rig, Way::$way);
                }
            }
        )+
    };
}

over_rdma! {
    postgres_through_a_listener: postgres, Listener;
    postgres_by_run: postgres, Run;
    redis_through_a_listener: redis, Listener;
    redis_by_run: redis, Run;
    nginx_through_a_listener: nginx, Listener;
    many_connections_through_a_listener: a_thousand_connections, Listener;
    many_connections_by_run: a_thousand_connections, Run;
    iperf_through_a_listener: iperf, Listener;
    rsync_through_a_listener: rsync, Listener;
    rsync_by_run: rsync, Run;
    git_through_a_listener: git, Listener;
    git_by_run: git, Run;
    curl_through_socks: curl, Socks;
}
