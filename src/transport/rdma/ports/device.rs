//! The RDMA devices of this host, their ports and GIDs, read from sysfs once for all connections that are made within a
//! moment.
//!
//! ```text
//! class/infiniband/mlx5_0        a link into the tree of devices; software has it under devices/virtual
//!   node_type                    1: CA
//!   device/driver                a link to the kernel's driver: mlx5_core
//!   parent                       rxe only: the interface below it
//!   ports/1/state                4: ACTIVE
//!   ports/1/phys_state           5: LinkUp
//!   ports/1/rate                 100 Gb/sec (4X EDR)
//!   ports/1/link_layer           InfiniBand | Ethernet
//!   ports/1/lid                  0x1
//!   ports/1/pkeys/0              0xffff: how many there are is all that is looked at
//!   ports/1/gids/0               fe80:0000:…   all zeros in an empty slot
//!   ports/1/gid_attrs/types/0    IB/RoCE v1 | RoCE v2   EINVAL in an empty slot
//!   ports/1/gid_attrs/ndevs/0    eth0.100      EINVAL in an empty slot, and on InfiniBand
//! class/infiniband_verbs/uverbs0/ibdev    mlx5_0, which /dev/infiniband/uverbs0 opens
//! ```

use std::{
    fmt,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::network::{Gid, GidKind, LinkLayer, Networks};

/// All RDMA devices of this host, usable or not.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) devices: Vec<Device>,
}

/// One RDMA device.
#[derive(Debug)]
pub(crate) struct Device {
    /// The name, such as `mlx5_0`.
    pub(crate) name: String,
    /// True for a software device (rxe), which is slower than it says, and mostly slower than TCP.
    pub(crate) software: bool,
    /// The reason why no port of the device can be used.
    pub(crate) fault: Option<PortFault>,
    pub(crate) ports: Vec<Port>,
}

/// One port of a device.
#[derive(Debug)]
pub(crate) struct Port {
    /// The number, from 1.
    pub(crate) number: u8,
    /// The state of the link: `ACTIVE` and others.
    pub(crate) state: String,
    /// The state of the cable: `LinkUp` and others. RoCE drivers also say `Disabled` for a cable that is out.
    pub(crate) phys_state: String,
    /// The link layer; `None` when the kernel names an unknown one.
    pub(crate) link_layer: Option<LinkLayer>,
    /// The speed in Mbit/s; 0 when unknown. Software always says 2,500.
    pub(crate) rate_mbps: u32,
    /// The address in an InfiniBand subnet; 0 on Ethernet.
    pub(crate) lid: u16,
    /// The size of the partition key table.
    pub(crate) pkeys: usize,
    pub(crate) gids: Vec<GidEntry>,
}

#[derive(Debug)]
pub(crate) struct GidEntry {
    pub(crate) index: u8,
    /// The address.
    pub(crate) gid: Gid,
    /// The protocol that uses the address.
    pub(crate) kind: GidKind,
    /// The interface that has the address: `eth0`, `eth0.100`, `bond0`. `None` on InfiniBand.
    pub(crate) netdev: Option<String>,
    /// The prefix length of the address, where it is known.
    pub(crate) prefix: Option<u8>,
    /// The largest packet payload in bytes: one of [`MTUS`].
    pub(crate) mtu: u16,
}

/// The reason why a device or a port cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortFault {
    /// The device connects only through librdmacm, which async-rdma does not use.
    Iwarp,
    /// The device has no reliable queue pairs: usNIC, EFA.
    NodeType(String),
    /// Programs cannot open the device: the module `ib_uverbs` is not loaded.
    NoVerbs,
    /// The device file of this name does not exist, as in a container.
    NoFile(String),
    /// This user may not open the device file of this name.
    NoRights(String),
    /// libibverbs cannot be loaded, for this reason.
    #[cfg_attr(
        not(feature = "cli"),
        allow(dead_code, reason = "only the programs load it late")
    )]
    NoLibrary(String),
    /// The port is neither InfiniBand nor Ethernet.
    LinkLayer,
    /// The port is not active.
    State(String),
    /// The port has no address that a peer could reach.
    NoGid,
}

/// The payloads that an RDMA packet can have, in bytes.
pub(crate) const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];

/// The MTU of InfiniBand ports, in bytes. Only verbs know the true MTU, and async-rdma does not tell it. A larger value
/// than the true one fails to connect, and the 4096 of today's networks would gain a percent or two. 2048 is the
/// default of subnet managers.
const INFINIBAND_MTU: u16 = 2048;

/// The MTU of an Ethernet port whose interface is unknown, in bytes: it fits into Ethernet's own 1500.
const ETHERNET_MTU: u16 = 1024;

/// The size of the headers that the kernel subtracts when it derives the MTU of a RoCE port
/// (`iboe_get_mtu`): GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4. rxe leaves 80: between
/// the two, this is the smaller MTU, which always works.
const ROCE_HEADER_BYTES: u32 = 96;

/// The number of empty entries in a row at which the reading of a GID table ends. The kernel puts an address into the
/// first empty entry, so an entry behind so many is left from a time when the port had more addresses. In user-mode
/// Linux 256 entries take 5 ms at each end before a stream can start.
const MAX_EMPTY_GIDS: u32 = 16;

impl Inventory {
    /// Reads the devices from sysfs. Files that cannot be read count as missing.
    pub(crate) fn read(roots: &Roots) -> Self {
        let networks = Networks::read(&roots.proc);
        let names: Vec<String> = entries(&roots.sys.join("class/infiniband"));
        let device = |name| Device::read(roots, &networks, name);
        Self {
            devices: names.into_iter().map(device).collect(),
        }
    }

    /// Returns libibverbs' names of the drivers of the devices, as far as they are known.
    #[cfg(feature = "cli")]
    pub(crate) fn drivers(&self, roots: &Roots) -> impl Iterator<Item = &'static str> {
        let class = roots.sys.join("class/infiniband");
        let driver = move |device: &Device| {
            if device.software {
                Some("rxe")
            } else {
                hardware_driver(&class.join(&device.name))
            }
        };
        self.devices.iter().filter_map(driver)
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.devices
            .iter()
            .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }
}

impl Device {
    fn read(roots: &Roots, networks: &Networks, name: String) -> Self {
        let path = roots.sys.join("class/infiniband").join(&name);
        let numbers: Vec<u8> = entries(&path.join("ports"));
        let port = |number| Port::read(roots, networks, &path, number);
        Self {
            software: is_software(&path),
            fault: node_fault(&path)
                .or_else(|| file_fault(roots, &name))
                .or_else(library_fault),
            ports: numbers.into_iter().map(port).collect(),
            name,
        }
    }
}

impl Port {
    fn read(roots: &Roots, networks: &Networks, device: &Path, number: u8) -> Self {
        let path = device.join("ports").join(number.to_string());
        let text = |name| text(&path.join(name)).unwrap_or_default();
        let link_layer = LinkLayer::parse(&text("link_layer"));
        let entry = |(index, gid)| GidEntry::read(roots, networks, &path, link_layer?, index, gid);
        let gids = used_gids(&path).into_iter().filter_map(entry);
        let lid = read_number(&path.join("lid"));
        Self {
            number,
            state: enumerated(&text("state")),
            phys_state: enumerated(&text("phys_state")),
            link_layer,
            rate_mbps: rate_mbps(&text("rate")).unwrap_or(0),
            lid: lid.and_then(|lid| u16::try_from(lid).ok()).unwrap_or(0),
            pkeys: entries::<u16>(&path.join("pkeys")).len(),
            gids: gids.collect(),
        }
    }

    /// Returns the reason why the port cannot be used, apart from its device.
    pub(crate) fn fault(&self) -> Option<PortFault> {
        if self.state != "ACTIVE" {
            Some(PortFault::State(self.state.clone()))
        } else if self.link_layer.is_none() {
            Some(PortFault::LinkLayer)
        } else if !self.gids.iter().any(GidEntry::is_reachable) {
            Some(PortFault::NoGid)
        } else {
            None
        }
    }
}

/// Returns the addresses in a port's GID table, each with its index.
fn used_gids(port: &Path) -> Vec<(u8, Gid)> {
    let (mut used, mut empty) = (Vec::new(), 0);
    // Verbs address a GID by one byte; rxe has a table of 1,024.
    for index in 0..=u8::MAX {
        let text = text(&port.join(format!("gids/{index}")));
        match text.and_then(|text| Gid::parse(&text)) {
            Some(gid) if !gid.is_zero() => {
                used.push((index, gid));
                empty = 0;
            }
            _ if empty + 1 == MAX_EMPTY_GIDS => break,
            _ => empty += 1,
        }
    }
    used
}

impl GidEntry {
    fn read(
        roots: &Roots,
        networks: &Networks,
        port: &Path,
        link: LinkLayer,
        index: u8,
        gid: Gid,
    ) -> Option<Self> {
        let attribute = |name| text(&port.join(format!("gid_attrs/{name}/{index}")));
        let (kind, netdev) = match link {
            // Older kernels have no attributes for InfiniBand, and none of it needs them.
            LinkLayer::InfiniBand => (GidKind::InfiniBand, None),
            // The slot may have been emptied since: then these answer EINVAL.
            LinkLayer::Ethernet => (
                GidKind::parse(&attribute("types")?, link)?,
                attribute("ndevs"),
            ),
        };
        let netdev = netdev.filter(|name| !name.is_empty());
        Some(Self {
            index,
            gid,
            kind,
            prefix: netdev
                .as_ref()
                .and_then(|name| networks.prefix(name, gid.ip())),
            mtu: match link {
                LinkLayer::InfiniBand => INFINIBAND_MTU,
                LinkLayer::Ethernet => roce_mtu(roots, netdev.as_deref()),
            },
            netdev,
        })
    }

    /// Returns true if a peer could reach the address.
    pub(crate) fn is_reachable(&self) -> bool {
        use super::network::Scope;
        self.kind == GidKind::InfiniBand || self.gid.scope() != Scope::Nowhere
    }
}

impl fmt::Display for PortFault {
    /// Formats the reason as words that follow the name of the device or port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iwarp => f.write_str("is iWARP, which rdpipe does not use"),
            Self::NodeType(kind) => write!(f, "is of type {kind}, which rdpipe does not use"),
            Self::NoVerbs => {
                f.write_str("is closed to programs (load the kernel module ib_uverbs)")
            }
            Self::NoFile(name) => write!(
                f,
                "has no /dev/infiniband/{name} (in a container, pass it in)"
            ),
            Self::NoRights(name) => write!(
                f,
                "may not be used: no rights on /dev/infiniband/{name} (`chmod 666` it, or give it mode \
                 660 and a group of this user's, in a udev rule if that is to last)"
            ),
            Self::NoLibrary(why) => write!(
                f,
                "cannot be used: {why} (install libibverbs1 and ibverbs-providers, or libibverbs)"
            ),
            Self::LinkLayer => f.write_str("is neither InfiniBand nor Ethernet"),
            Self::State(state) if state == "INIT" => {
                f.write_str("is INIT (no subnet manager has set it up)")
            }
            Self::State(state) if state == "DOWN" => {
                f.write_str("is DOWN (set its network interface up, or see to the cable)")
            }
            Self::State(state) if state.is_empty() => f.write_str("has no readable state"),
            Self::State(state) => write!(f, "is {state}"),
            Self::NoGid => f.write_str("has no address (give its network interface one)"),
        }
    }
}

/// Returns the largest MTU that fits into `bytes`.
pub(crate) fn mtu_within(bytes: u32) -> Option<u16> {
    let fits = |mtu: &&u16| u32::from(**mtu) <= bytes;
    MTUS.iter().rev().find(fits).copied()
}

fn roce_mtu(roots: &Roots, netdev: Option<&str>) -> u16 {
    let path = |name| roots.sys.join("class/net").join(name).join("mtu");
    // An interface in another network namespace is named, but not to be seen.
    let Some(bytes) = netdev.and_then(|name| read_number(&path(name))) else {
        return ETHERNET_MTU;
    };
    mtu_within(bytes.saturating_sub(ROCE_HEADER_BYTES)).unwrap_or(MTUS[0])
}

/// Returns true for a software device. rxe has the file `parent`, which names its interface; on older kernels its place
/// is below the PCI device of the network card. Newer rxe devices and other software devices are virtual devices.
fn is_software(device: &Path) -> bool {
    let is_virtual = |path: PathBuf| {
        let parts: Vec<_> = path.iter().collect();
        parts
            .windows(2)
            .any(|w| w[0] == "devices" && w[1] == "virtual")
    };
    device.join("parent").is_file() || device.canonicalize().is_ok_and(is_virtual)
}

/// Returns libibverbs' name of the driver of an adapter, from the kernel's; `None` for the rarer ones, which libibverbs
/// finds itself.
#[cfg(feature = "cli")]
fn hardware_driver(device: &Path) -> Option<&'static str> {
    let kernel = fs::read_link(device.join("device/driver")).ok()?;
    match kernel.file_name()?.to_str()? {
        "mlx5_core" => Some("mlx5"),
        "mlx4_core" => Some("mlx4"),
        "bnxt_en" => Some("bnxt_re"),
        "ice" => Some("irdma"),
        _ => None,
    }
}

/// Returns the fault that `node_type` shows. `1: CA` stands for every adapter that has reliable queue pairs.
fn node_fault(device: &Path) -> Option<PortFault> {
    let text = text(&device.join("node_type")).unwrap_or_default();
    let kind = enumerated(&text);
    match kind.as_str() {
        "CA" => None,
        "RNIC" => Some(PortFault::Iwarp),
        "" => Some(PortFault::NodeType("unknown".to_owned())),
        _ => Some(PortFault::NodeType(kind)),
    }
}

/// Returns the reason why the library of the devices cannot be loaded. The programs load it for the first device.
#[cfg(feature = "cli")]
fn library_fault() -> Option<PortFault> {
    let why = crate::transport::rdma::late::missing_library()?;
    Some(PortFault::NoLibrary(why.to_owned()))
}

/// Returns none: a program that uses the crate alone starts with the library, or not at all.
#[cfg(not(feature = "cli"))]
fn library_fault() -> Option<PortFault> {
    None
}

/// Returns the reason why this process cannot open the device.
fn file_fault(roots: &Roots, device: &str) -> Option<PortFault> {
    let class = roots.sys.join("class/infiniband_verbs");
    let names: Vec<String> = entries(&class);
    let opens =
        |name: &String| text(&class.join(name).join("ibdev")).is_some_and(|text| text == device);
    let Some(name) = names.into_iter().find(opens) else {
        return Some(PortFault::NoVerbs);
    };
    let path = roots.dev.join("infiniband").join(&name);
    match access(&path, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => None,
        Err(Errno::ACCESS | Errno::PERM) => Some(PortFault::NoRights(name)),
        Err(_) => Some(PortFault::NoFile(name)),
    }
}

/// Returns `ACTIVE` of `4: ACTIVE`; empty when the text has another form.
fn enumerated(text: &str) -> String {
    match text.split_once(": ") {
        Some((number, word)) if number.parse::<u8>().is_ok() => word.trim().to_owned(),
        _ => String::new(),
    }
}

/// Returns 100,000 of `100 Gb/sec (4X EDR)`, 2,500 of `2.5 Gb/sec (1X SDR)`. The kernel prints no fractions but halves.
fn rate_mbps(text: &str) -> Option<u32> {
    let (number, _) = text.split_once(" Gb/sec")?;
    let (whole, half) = match number.strip_suffix(".5") {
        Some(whole) => (whole, 500),
        None => (number, 0),
    };
    whole
        .parse::<u32>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(half)
}

/// The age up to which an inventory is used again.
///
/// A reading opens a file for each entry of a GID table. With one or two readings each, 200 connections at once over
/// soft-RoCE took 34 s on an emulated processor, and 8 s when they shared one. A port that goes away meanwhile costs an
/// attempt, because each connection proves its ports. A port that comes is used by connections that begin half a second
/// later.
const MAX_AGE: Duration = Duration::from_millis(500);

/// The last inventory that was read.
static LAST: Mutex<LastRead> = Mutex::new(LastRead(None));

struct LastRead(Option<(Instant, Arc<Inventory>)>);

/// Returns the devices of this host as they are now, or were a moment ago. Blocks while another thread reads them.
pub(crate) fn inventory() -> Arc<Inventory> {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.recent(Instant::now, || Inventory::read(&Roots::default()))
}

impl LastRead {
    /// Returns the last inventory, or a new one if that is too old.
    fn recent(
        &mut self,
        now: impl Fn() -> Instant,
        read: impl FnOnce() -> Inventory,
    ) -> Arc<Inventory> {
        if let Some((read_at, inventory)) = &self.0 {
            if now().duration_since(*read_at) < MAX_AGE {
                return Arc::clone(inventory);
            }
        }
        let inventory = Arc::new(read());
        // The age counts from the end of the reading: on a slow machine the reading itself takes longer than the age.
        self.0 = Some((now(), Arc::clone(&inventory)));
        inventory
    }
}

/// The mount points of the kernel's file systems. Tests replace them by trees of their own.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    /// sysfs.
    pub(crate) sys: PathBuf,
    /// procfs.
    pub(crate) proc: PathBuf,
    /// devtmpfs.
    pub(crate) dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            dev: "/dev".into(),
        }
    }
}

/// The longest attribute, which the kernel returns in one read. That takes half the system calls of [`fs::read`], and
/// there are hundreds of these files.
const PAGE_BYTES: usize = 4096;

/// Reads an attribute and trims it. Returns `None` if it is missing or cannot be read: the attributes of an empty entry
/// of the GID table, for instance, return EINVAL.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut page = [0; PAGE_BYTES];
    let count = File::open(path).ok()?.read(&mut page).ok()?;
    Some(String::from_utf8_lossy(&page[..count]).trim().to_owned())
}

/// Reads an attribute that is a number, decimal or hexadecimal after `0x`.
fn read_number(path: &Path) -> Option<u32> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the entries of a directory whose names parse as `T`, sorted. Empty if there is no such directory.
pub(crate) fn entries<T: FromStr + Ord>(path: &Path) -> Vec<T> {
    let Ok(directory) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut names: Vec<T> = directory
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_to_the_half() {
        assert_eq!(rate_mbps("100 Gb/sec (4X EDR)"), Some(100_000));
        assert_eq!(rate_mbps("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(rate_mbps("400 Gb/sec (4X NDR)"), Some(400_000));
        for nonsense in ["", "fast", " Gb/sec", "-1 Gb/sec", "5000000 Gb/sec", "100"] {
            assert_eq!(rate_mbps(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn an_mtu_is_one_that_rdma_has() {
        assert_eq!(mtu_within(9000 - ROCE_HEADER_BYTES), Some(4096));
        assert_eq!(mtu_within(1500 - ROCE_HEADER_BYTES), Some(1024));
        assert_eq!(mtu_within(4095), Some(2048));
        assert_eq!(mtu_within(255), None);
    }

    #[test]
    fn words_are_told_from_nonsense() {
        assert_eq!(enumerated("4: ACTIVE"), "ACTIVE");
        assert_eq!(enumerated("7: Phy Test"), "Phy Test");
        assert_eq!(enumerated("ACTIVE"), "");
        assert_eq!(enumerated(": ACTIVE"), "");
    }

    #[test]
    fn connections_of_a_moment_share_one_reading() {
        let empty = || Inventory {
            devices: Vec::new(),
        };
        let began = Instant::now();
        let mut last = LastRead(None);
        let first = last.recent(|| began, empty);
        let second = last.recent(|| began + MAX_AGE / 2, empty);
        assert!(Arc::ptr_eq(&first, &second));
        let third = last.recent(|| began + MAX_AGE, empty);
        assert!(!Arc::ptr_eq(&first, &third), "it is too old");
    }
}
