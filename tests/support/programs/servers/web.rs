//! Servers of pages.

use super::{LISTENING, Service, files::TREE};

/// The configuration of nginx: two processes, with room for thousands of connections at once.
const CONFIGURATION: &str = "\
worker_processes 2;\n\
worker_rlimit_nofile 16384;\n\
pid nginx.pid;\n\
error_log stderr warn;\n\
events { worker_connections 8192; }\n\
http {\n\
    access_log off;\n\
    client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n\
    keepalive_requests 100000;\n\
    server { listen ADDRESS:8080 backlog=4096; root tree; location = /count { stub_status; } }\n\
}\n";

/// Returns nginx with a tree of files, of which `/large` has `bytes`, and its counters at `/count`.
pub fn nginx(address: &str, bytes: usize) -> Service {
    let configuration = CONFIGURATION.replace("ADDRESS", address);
    Service {
        name: "nginx",
        port: 8080,
        script: format!(
            "{TREE}\
             tree tree {bytes}\n\
             cat >nginx.conf <<'END'\n{configuration}END\n\
             exec nginx -p \"$PWD\" -e stderr -c nginx.conf -g 'daemon off;'\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}
