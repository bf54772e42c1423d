//! What `--version` prints.

use std::sync::LazyLock;

use crate::{
    forward::tunnel::messages::TUNNEL_VERSION, ssh::protocol, transport::PROTOCOL_VERSION,
};

/// Returns the version of the program, the revision that it was built from, whether it has RDMA, and the versions of the
/// protocols. Two programs work together if these versions agree.
pub(crate) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        let revision = option_env!("RDPIPE_REVISION").unwrap_or("not recorded");
        let rdma = if cfg!(feature = "rdma") {
            "with RDMA, where a host has a device and libibverbs"
        } else {
            "without RDMA"
        };
        let agents = protocol::VERSION;
        format!(
            "{version} (revision {revision})\n{rdma}\nprotocols: streams {PROTOCOL_VERSION}, agents {agents}, tunnels {TUNNEL_VERSION}"
        )
    });
    &TEXT
}
