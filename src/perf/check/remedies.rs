//! Remedies that several findings have: commands that a person can type. Pure, no I/O.

/// The ports that are proposed to a user who has not chosen any with `-p`.
const PROPOSED_PORTS: (u16, u16) = (7691, 7699);

/// The command that allows any amount of memory to be pinned, for all users from their next login on.
pub(super) const RAISE_MEMLOCK: &str = "`ulimit -l unlimited` in the shell that starts it; for all users: `printf '* soft memlock \
     unlimited\\n* hard memlock unlimited\\n' | sudo tee /etc/security/limits.d/rdma.conf`, and log in again; \
     in a systemd unit: LimitMEMLOCK=infinity; in a container: `docker run --ulimit memlock=-1`";

/// The command that adds RDMA in software to an interface.
pub(super) fn soft_roce(netdev: &str) -> String {
    format!(
        "RDMA in software, for tests: `sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev {netdev}`"
    )
}

/// The commands that give users the rights on a device file.
pub(super) fn device_rights(file: &str) -> String {
    format!(
        "`sudo chmod 666 {file}`; for good: `echo 'KERNEL==\"uverbs*\", GROUP=\"rdma\", MODE=\"0660\"' | \
         sudo tee /etc/udev/rules.d/90-rdma.rules && sudo udevadm trigger`, and `sudo usermod -aG rdma $USER`"
    )
}

/// The commands that open TCP ports on a host, and the option that uses these ports.
pub(super) fn open_tcp(host: &str, ports: Option<(u16, u16)>) -> String {
    let (first, last) = ports.unwrap_or(PROPOSED_PORTS);
    let range = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    let open = open_ports(&range, "tcp");
    match ports {
        Some(_) => format!("on {host}: {open}"),
        None => format!("on {host}: {open}; then use -p {range}"),
    }
}

/// The commands that open the port of RoCE v2 on two hosts.
pub(super) fn open_roce(first: &str, second: &str) -> String {
    let open = open_ports("4791", "udp");
    format!("on {first} and {second}: {open}; on the switches between them too")
}

/// The command that sets the MTU of an interface.
pub(super) fn set_mtu(netdev: &str, mtu: u32) -> String {
    format!("`sudo ip link set dev {netdev} mtu {mtu}`")
}

fn open_ports(range: &str, protocol: &str) -> String {
    format!(
        "`sudo firewall-cmd --add-port={range}/{protocol}` or `sudo nft insert rule inet filter input {protocol} \
         dport {range} accept`"
    )
}
