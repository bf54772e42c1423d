//! What an agent finds out about its host, from procfs, sysfs and the device files: the processors, the clock of the
//! kernel, the RDMA devices, how much memory may be pinned, and the interfaces with an address.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    process::{Resource, getrlimit},
};

use super::messages::{HostFacts, PerfOrder};
use crate::{
    Cipher, Direction, StreamConfig,
    perf::messages::{AddressFacts, CipherSpeed, DeviceFacts, MemlockFacts},
    reach,
    ssh::protocol::AgentHello,
};

/// Finds out everything that rdperf checks about this host. Blocks for some milliseconds: it reads hundreds of small
/// files.
pub(crate) fn collect(order: &PerfOrder, hello: AgentHello) -> HostFacts {
    let config = order.stream.config(Direction::Both);
    collect_below(&HostRoots::default(), &config, hello)
}

/// Finds out the facts below `roots`. The limits of this process and its addresses are those of this host.
fn collect_below(roots: &HostRoots, config: &StreamConfig, hello: AgentHello) -> HostFacts {
    let found = find_devices(roots, config);
    HostFacts {
        hello,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        has_rdma_build: cfg!(feature = "rdma"),
        kernel: kernel(),
        processor: processor_name(roots),
        processors: processor_count(),
        ciphers: ciphers(config),
        governor: governor(roots),
        clock_source: clock_source(roots),
        clock_ms: clock_ms(),
        memlock: memlock(config),
        devices: found.devices,
        no_rdma: found.no_rdma,
        addresses: addresses(roots),
    }
}

/// Returns the time of this host's clock, in milliseconds since 1970.
fn clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}

/// The names that `/proc/cpuinfo` has for the name of a processor, on different architectures, the best first.
const NAME_FIELDS: &[&str] = &["model name", "cpu model", "cpu", "Model", "Hardware"];

/// The governor that keeps a processor at its highest frequency.
const PERFORMANCE: &str = "performance";

fn kernel() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

/// Returns the name of the processor; of an unknown one the architecture.
fn processor_name(roots: &HostRoots) -> String {
    let text = trimmed(&roots.proc.join("cpuinfo")).unwrap_or_default();
    name_in(&text).unwrap_or_else(|| {
        let uname = rustix::system::uname();
        uname.machine().to_string_lossy().into_owned()
    })
}

/// Returns the number of processors that this process may use.
fn processor_count() -> u32 {
    let count = thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Measures how fast one thread encrypts chunks of a stream with these settings.
fn ciphers(config: &StreamConfig) -> Vec<CipherSpeed> {
    let ciphers = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305].into_iter();
    let speed = |cipher: Cipher| CipherSpeed {
        cipher,
        bytes_per_second: cipher.bytes_per_second(config.chunk_bytes),
    };
    ciphers.map(speed).collect()
}

/// Returns the scaling governor: of processors with different ones the first that is not `performance`.
fn governor(roots: &HostRoots) -> Option<String> {
    let directory = roots.sys.join("devices/system/cpu");
    let processors = names(&directory)
        .into_iter()
        .filter(|name| is_processor(name));
    let governor = |name: String| trimmed(&directory.join(name).join("cpufreq/scaling_governor"));
    let governors: Vec<String> = processors.filter_map(governor).collect();
    let slow = governors.iter().find(|governor| *governor != PERFORMANCE);
    slow.or(governors.first()).cloned()
}

fn clock_source(roots: &HostRoots) -> Option<String> {
    let path = "devices/system/clocksource/clocksource0/current_clocksource";
    trimmed(&roots.sys.join(path))
}

/// Returns the name of the first processor in the text of `/proc/cpuinfo`.
fn name_in(cpuinfo: &str) -> Option<String> {
    let value = |field: &&str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            (name.trim() == *field && !value.is_empty()).then_some(value)
        })
    };
    NAME_FIELDS.iter().find_map(value)
}

/// Returns true for `cpu0` and `cpu12`, and false for `cpuidle`.
fn is_processor(name: &str) -> bool {
    let number = name.strip_prefix("cpu").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the limit of this process, and calculates what one end of a stream with these settings pins.
#[cfg(feature = "rdma")]
fn memlock(config: &StreamConfig) -> MemlockFacts {
    use crate::transport::{LocalPorts, Memlock};

    let limit = getrlimit(Resource::Memlock).current;
    let demand = LocalPorts::demand(config);
    MemlockFacts {
        limit,
        needed: demand.wanted,
        least: demand.least,
        is_privileged: limit.is_some() && Memlock::now().limit.is_none(),
    }
}

/// Reads the limit of this process. A build without RDMA pins nothing.
#[cfg(not(feature = "rdma"))]
fn memlock(_config: &StreamConfig) -> MemlockFacts {
    MemlockFacts {
        limit: getrlimit(Resource::Memlock).current,
        needed: 0,
        least: 0,
        is_privileged: false,
    }
}

/// The most addresses that are reported: a host with many containers has hundreds.
const MAX_ADDRESS_FACTS: usize = 64;

/// Returns the addresses of this host that are neither loopback nor link-local, each with its interface.
fn addresses(roots: &HostRoots) -> Vec<AddressFacts> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let usable = interfaces
        .iter()
        .filter(|interface| !reach::usable([interface.ip()]).is_empty());
    let facts = usable.map(|interface| AddressFacts {
        mtu: mtu(roots, &interface.name).unwrap_or(0),
        rate_mbps: interface_rate(roots, &interface.name),
        address: interface.ip(),
        netdev: interface.name.clone(),
    });
    facts.take(MAX_ADDRESS_FACTS).collect()
}

pub(in crate::perf) fn netdev_of(address: IpAddr) -> Option<String> {
    let interfaces = if_addrs::get_if_addrs().ok()?;
    let address = address.to_canonical();
    let owner = interfaces
        .into_iter()
        .find(|interface| interface.ip() == address);
    owner.map(|interface| interface.name)
}

/// Returns the MTU of an interface in bytes.
pub(in crate::perf) fn mtu(roots: &HostRoots, netdev: &str) -> Option<u32> {
    decimal(&roots.sys.join("class/net").join(netdev).join("mtu"))
}

/// Returns the rate of an interface in Mbit/s. Drivers that do not know it say -1, or nothing. A virtual interface has
/// no rate: veth says 10 Gbit/s whatever it carries.
fn interface_rate(roots: &HostRoots, netdev: &str) -> Option<u32> {
    let interface = roots.sys.join("class/net").join(netdev);
    let is_real = ["device", "bonding"]
        .iter()
        .any(|part| interface.join(part).exists());
    let rate = decimal::<u32>(&interface.join("speed"));
    rate.filter(|rate| *rate > 0 && is_real)
}

/// The mount points of the kernel's file systems. Tests replace them by trees of their own.
#[derive(Debug, Clone)]
pub(crate) struct HostRoots {
    /// sysfs.
    pub(crate) sys: PathBuf,
    /// procfs.
    pub(crate) proc: PathBuf,
    /// devtmpfs.
    pub(crate) dev: PathBuf,
}

impl Default for HostRoots {
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl HostRoots {
    /// Returns the roots `sys`, `proc` and `dev` of a directory.
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            sys: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
        }
    }
}

/// Reads a file and trims it. Returns none if it is empty, missing or unreadable.
pub(crate) fn trimmed(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Reads a file that is a decimal number.
pub(crate) fn decimal<T: FromStr>(path: &Path) -> Option<T> {
    trimmed(path)?.parse().ok()
}

/// Returns the names in a directory, sorted; none if there is no such directory.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let Ok(directory) = fs::read_dir(path) else {
        return Vec::new();
    };
    let names = directory.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// The RDMA devices of a host.
pub(super) struct FoundDevices {
    /// The devices, usable or not, by name.
    pub(super) devices: Vec<DeviceFacts>,
    /// The reason why this host cannot use RDMA with the settings of the order; none if it can.
    pub(super) no_rdma: Option<String>,
}

/// Finds the devices below `roots`, and opens the file of each one.
fn find_devices(roots: &HostRoots, config: &StreamConfig) -> FoundDevices {
    let mut found = inventory::find(roots, config);
    for device in &mut found.devices {
        device.forbidden_file = forbidden(roots, &device.name);
        if let (None, Some(file)) = (&device.fault, &device.forbidden_file) {
            device.fault = Some(format!("may not be used: no rights on {file}"));
        }
    }
    let all_forbidden =
        !found.devices.is_empty() && found.devices.iter().all(|device| device.fault.is_some());
    if found.no_rdma.is_none() && all_forbidden {
        let faults = found.devices.iter().filter_map(|device| {
            let fault = device.fault.as_ref()?;
            Some(format!("{} {fault}", device.name))
        });
        found.no_rdma = Some(faults.collect::<Vec<_>>().join("; "));
    }
    found
}

/// Returns the path of the device's file, if this user may not open it. A container may be forbidden to open a file
/// that it may read and write by its mode, so the file is opened.
fn forbidden(roots: &HostRoots, device: &str) -> Option<String> {
    let class = roots.sys.join("class/infiniband_verbs");
    let mut names = names(&class).into_iter();
    let name = names.find(|name| {
        let opens = trimmed(&class.join(name).join("ibdev"));
        opens.is_some_and(|text| text == device)
    })?;
    let path = roots.dev.join("infiniband").join(&name);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match open(&path, flags, Mode::empty()) {
        Err(Errno::ACCESS | Errno::PERM) => Some(format!("/dev/infiniband/{name}")),
        _ => None,
    }
}

#[cfg(feature = "rdma")]
mod inventory {
    //! The RDMA devices as streams see them.

    use std::path::Path;

    use super::FoundDevices;
    use crate::{
        StreamConfig,
        perf::{
            facts::{HostRoots, decimal, names, trimmed},
            messages::{DeviceFacts, PortFacts},
        },
        transport::{Device, GidEntry, Inventory, LocalPorts, Port, Roots},
    };

    /// The most addresses of a port that are reported. rxe has one for each address of its interface.
    const MAX_GID_FACTS: usize = 16;

    /// Reads the devices, and the reason why streams with these settings cannot use them.
    pub(super) fn find(roots: &HostRoots, config: &StreamConfig) -> FoundDevices {
        let HostRoots { sys, proc, dev } = roots.clone();
        let inventory = Inventory::read(&Roots { sys, proc, dev });
        let devices = inventory.devices.iter();
        FoundDevices {
            devices: devices.map(|device| device_facts(roots, device)).collect(),
            no_rdma: LocalPorts::among(&inventory, config)
                .err()
                .map(|none| none.reason),
        }
    }

    fn device_facts(roots: &HostRoots, device: &Device) -> DeviceFacts {
        let path = roots.sys.join("class/infiniband").join(&device.name);
        let ports = device.ports.iter();
        DeviceFacts {
            name: device.name.clone(),
            is_software: device.software,
            fault: device.fault.as_ref().map(ToString::to_string),
            forbidden_file: None,
            firmware: trimmed(&path.join("fw_ver")),
            ports: ports.map(|port| port_facts(&path, port)).collect(),
        }
    }

    fn port_facts(device: &Path, port: &Port) -> PortFacts {
        let link_layer = port.link_layer.map(|layer| layer.to_string());
        let path = device.join("ports").join(port.number.to_string());
        let gids = port.gids.iter().filter(|entry| entry.is_reachable());
        PortFacts {
            number: port.number,
            state: port.state.clone(),
            link_layer: link_layer
                .or_else(|| trimmed(&path.join("link_layer")))
                .unwrap_or_else(|| "unknown".to_owned()),
            rate_mbps: port.rate_mbps,
            fault: port.fault().map(|fault| fault.to_string()),
            netdev: netdev(device, port),
            gids: gids.take(MAX_GID_FACTS).map(gid_text).collect(),
        }
    }

    /// Returns the address for the user: `GID 3 (RoCE v2, 10.1.0.5 on eth0), MTU 1024`.
    fn gid_text(entry: &GidEntry) -> String {
        let GidEntry {
            index,
            gid,
            kind,
            netdev,
            mtu,
            ..
        } = entry;
        match netdev {
            Some(netdev) => format!("GID {index} ({kind}, {gid} on {netdev}), MTU {mtu}"),
            None => format!("GID {index} ({kind}, {gid}), MTU {mtu}"),
        }
    }

    /// Returns the interface of a port: of one of its addresses; of a port without addresses the interface below rxe,
    /// or the interface of the same card that has the port's number.
    fn netdev(device: &Path, port: &Port) -> Option<String> {
        let of_gid = port.gids.iter().find_map(|entry| entry.netdev.clone());
        of_gid
            .or_else(|| trimmed(&device.join("parent")))
            .or_else(|| {
                let cards = device.join("device/net");
                let index = u32::from(port.number).checked_sub(1);
                let mut names = names(&cards).into_iter();
                names.find(|name| decimal(&cards.join(name).join("dev_port")) == index)
            })
    }
}

#[cfg(not(feature = "rdma"))]
mod inventory {
    //! The RDMA devices as a build without RDMA sees them: their names.

    use super::FoundDevices;
    use crate::{
        StreamConfig,
        perf::{
            facts::{HostRoots, names, trimmed},
            messages::DeviceFacts,
        },
    };

    /// The reason why this build cannot use RDMA.
    const NOT_BUILT: &str = "this rdpipe was built without RDMA";

    pub(super) fn find(roots: &HostRoots, _config: &StreamConfig) -> FoundDevices {
        let class = roots.sys.join("class/infiniband");
        let device = |name: String| DeviceFacts {
            is_software: class.join(&name).join("parent").is_file(),
            fault: Some(format!("is not used: {NOT_BUILT}")),
            forbidden_file: None,
            firmware: trimmed(&class.join(&name).join("fw_ver")),
            ports: Vec::new(),
            name,
        };
        FoundDevices {
            devices: names(&class).into_iter().map(device).collect(),
            no_rdma: Some(NOT_BUILT.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tempfile::TempDir;

    use super::*;
    use crate::perf::messages::DeviceFacts;

    struct FactsTree(TempDir);

    impl FactsTree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// Adds an rxe device over an interface, with one address.
        fn rxe(&self, device: &str, netdev: &str, state: &str) {
            let class = format!("sys/class/infiniband/{device}");
            self.write(&format!("{class}/node_type"), "1: CA");
            self.write(&format!("{class}/parent"), netdev);
            self.write(&format!("{class}/fw_ver"), "");
            let port = format!("{class}/ports/1");
            for (name, text) in [
                ("state", state),
                ("link_layer", "Ethernet"),
                ("rate", "2.5 Gb/sec (1X SDR)"),
                ("gids/0", "0000:0000:0000:0000:0000:ffff:0a01:0005"),
                ("gid_attrs/types/0", "RoCE v2"),
                ("gid_attrs/ndevs/0", netdev),
            ] {
                self.write(&format!("{port}/{name}"), text);
            }
            let verbs = format!("sys/class/infiniband_verbs/uverbs_{device}/ibdev");
            self.write(&verbs, device);
            self.write(&format!("dev/infiniband/uverbs_{device}"), "");
            self.write(&format!("sys/class/net/{netdev}/mtu"), "1500");
        }

        fn facts(&self) -> HostFacts {
            let hello = AgentHello {
                host: "fs1".to_owned(),
                machine: String::new(),
                addresses: Vec::new(),
                streams: 1,
                most_streams: None,
            };
            let roots = HostRoots::below(self.0.path());
            collect_below(&roots, &StreamConfig::default(), hello)
        }

        fn device(&self) -> DeviceFacts {
            self.facts().devices.remove(0)
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    #[test]
    fn the_facts_of_an_empty_host_are_found() {
        let facts = FactsTree::new().facts();
        assert_eq!(facts.hello.host, "fs1");
        assert_eq!(facts.version, env!("CARGO_PKG_VERSION"));
        assert_eq!((facts.governor, facts.clock_source), (None, None));
        assert!(!facts.kernel.is_empty() && !facts.processor.is_empty());
        assert!(facts.processors >= 1);
        assert!(facts.clock_ms > 1_600_000_000_000);
        assert!(facts.devices.is_empty());
        assert!(facts.no_rdma.is_some());
    }

    #[test]
    fn the_facts_of_this_host_fit_into_a_message() {
        let hello = FactsTree::new().facts().hello;
        let facts = collect_below(&HostRoots::default(), &StreamConfig::default(), hello);
        crate::ssh::protocol::Payload::encode(&facts).unwrap();
    }

    #[test]
    fn one_processor_that_saves_power_is_reported() {
        let tree = FactsTree::new();
        let governor = |number, text| {
            let path = format!("sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor");
            tree.write(&path, text);
        };
        tree.write("sys/devices/system/cpu/cpuidle/current_driver", "none");
        tree.write(
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
        );
        governor(0, "performance");
        governor(1, "performance");
        let facts = tree.facts();
        assert_eq!(facts.governor.as_deref(), Some("performance"));
        assert_eq!(facts.clock_source.as_deref(), Some("hpet"));
        governor(1, "powersave");
        assert_eq!(tree.facts().governor.as_deref(), Some("powersave"));
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn a_device_is_reported_with_its_port_and_its_addresses() {
        let tree = FactsTree::new();
        tree.rxe("rxe0", "eth0", "4: ACTIVE");
        let device = tree.device();
        assert_eq!(device.name, "rxe0");
        assert!(device.is_software);
        assert_eq!((device.fault, device.firmware), (None, None));
        let port = &device.ports[0];
        assert_eq!((port.number, port.rate_mbps), (1, 2500));
        assert_eq!((port.state.as_str(), &port.fault), ("ACTIVE", &None));
        assert_eq!(port.link_layer, "Ethernet");
        assert_eq!(port.netdev.as_deref(), Some("eth0"));
        assert_eq!(port.gids, ["GID 0 (RoCE v2, 10.1.0.5 on eth0), MTU 1024"]);
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn a_port_that_is_down_has_a_fault_and_its_interface() {
        let tree = FactsTree::new();
        tree.rxe("rxe0", "eth0", "1: DOWN");
        tree.write("sys/class/infiniband/rxe0/fw_ver", "16.35.2000");
        let class = tree.path().join("sys/class/infiniband/rxe0");
        fs::remove_dir_all(class.join("ports/1/gids")).unwrap();
        fs::remove_file(class.join("parent")).unwrap();
        tree.write("sys/class/infiniband/rxe0/device/net/ens1f1/dev_port", "1");
        tree.write("sys/class/infiniband/rxe0/device/net/ens1f0/dev_port", "0");
        let facts = tree.facts();
        assert!(facts.no_rdma.unwrap().contains("is DOWN"));
        let device = &facts.devices[0];
        assert_eq!(device.firmware.as_deref(), Some("16.35.2000"));
        let port = &device.ports[0];
        assert!(port.fault.as_deref().unwrap().starts_with("is DOWN"));
        assert_eq!(port.netdev.as_deref(), Some("ens1f0"));
        assert!(port.gids.is_empty());
    }

    /// Root may open every file, whatever its mode.
    #[test]
    fn a_device_file_without_rights_is_named() {
        use std::os::unix::fs::PermissionsExt;

        let tree = FactsTree::new();
        tree.rxe("rxe0", "eth0", "4: ACTIVE");
        assert_eq!(tree.device().forbidden_file, None);
        let file = tree.path().join("dev/infiniband/uverbs_rxe0");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        let is_closed = fs::File::open(&file).is_err();
        let device = tree.device();
        if is_closed {
            let file = "/dev/infiniband/uverbs_rxe0";
            assert_eq!(device.forbidden_file.as_deref(), Some(file));
            assert!(device.fault.is_some());
        } else {
            assert_eq!(device.forbidden_file, None);
        }
    }

    #[test]
    fn the_least_memory_is_below_what_a_stream_takes() {
        let memlock = FactsTree::new().facts().memlock;
        if cfg!(feature = "rdma") {
            assert!(0 < memlock.least && memlock.least < memlock.needed);
        } else {
            assert_eq!((memlock.least, memlock.needed), (0, 0));
        }
    }

    #[test]
    fn the_name_of_a_processor_is_found_on_every_architecture() {
        let name = |text| name_in(text);
        let x86 = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R)   Gold 6248\n";
        assert_eq!(name(x86).unwrap(), "Intel(R) Xeon(R) Gold 6248");
        let power = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n";
        assert_eq!(name(power).unwrap(), "POWER9, altivec supported");
        let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nModel\t\t: Raspberry Pi 4\n";
        assert_eq!(name(arm).unwrap(), "Raspberry Pi 4");
        assert_eq!(name("processor\t: 0\nmodel name\t:\n"), None);
        assert_eq!(name(""), None);
    }

    #[test]
    fn a_directory_of_a_processor_has_a_number() {
        assert!(is_processor("cpu0") && is_processor("cpu127"));
        assert!(!is_processor("cpufreq") && !is_processor("cpu") && !is_processor("online"));
    }

    #[test]
    fn an_interface_has_an_mtu_and_a_driver_may_say_its_rate() {
        let tree = tempfile::tempdir().unwrap();
        let roots = HostRoots::below(tree.path());
        for (netdev, speed) in [
            ("eth0", "25000\n"),
            ("eth1", "-1\n"),
            ("veth0", "10000\n"),
            ("lo", ""),
        ] {
            let directory = roots.sys.join("class/net").join(netdev);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("mtu"), "9000\n").unwrap();
            fs::write(directory.join("speed"), speed).unwrap();
            if netdev.starts_with("eth") {
                fs::create_dir(directory.join("device")).unwrap();
            }
        }
        assert_eq!(mtu(&roots, "eth0"), Some(9000));
        assert_eq!(mtu(&roots, "eth2"), None);
        assert_eq!(interface_rate(&roots, "eth0"), Some(25_000));
        assert_eq!(interface_rate(&roots, "eth1"), None);
        assert_eq!(interface_rate(&roots, "veth0"), None);
        assert_eq!(interface_rate(&roots, "lo"), None);
    }

    #[test]
    fn the_loopback_interface_is_found_and_not_reported() {
        let lo = netdev_of("127.0.0.1".parse().unwrap());
        assert!(lo.is_some());
        assert_eq!(netdev_of("192.0.2.1".parse().unwrap()), None);
        let facts = addresses(&HostRoots::default());
        assert!(facts.iter().all(|facts| !facts.address.is_loopback()));
    }
}
