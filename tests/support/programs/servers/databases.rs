//! Databases as servers.

use super::{LISTENING, Service};

/// Returns `PostgreSQL` with an empty database, which asks clients of the test network for no password. Each connection
/// is a process.
pub fn postgres(address: &str) -> Service {
    Service {
        name: "postgres",
        port: 5432,
        script: format!(
            "PATH=$PATH:$(echo /usr/lib/postgresql/*/bin)\n\
             initdb -D data -U postgres -A trust -E UTF8 --locale=C --no-sync >initdb.log\n\
             echo 'host all all 10.77.0.0/24 trust' >>data/pg_hba.conf\n\
             exec postgres -D data -p 5432 -c listen_addresses={address} -c unix_socket_directories= -c max_connections=120\n"
        ),
        // It listens before it serves.
        ready: "database system is ready to accept connections",
        // A fast shutdown ends the sessions too.
        stop: "INT",
        is_root: false,
    }
}

/// Returns Redis, which keeps everything in memory.
pub fn redis(address: &str) -> Service {
    Service {
        name: "redis",
        port: 6379,
        script: format!(
            "exec redis-server --port 6379 --bind {address} --protected-mode no --save '' --appendonly no --loglevel warning\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}
