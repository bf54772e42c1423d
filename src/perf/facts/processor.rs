//! The processors, and the clock of the kernel.

use std::thread;

use super::host_roots::{HostRoots, names, trimmed};

/// The names that `/proc/cpuinfo` has for the name of a processor, on different architectures, the best first.
const NAME_FIELDS: &[&str] = &["model name", "cpu model", "cpu", "Model", "Hardware"];

/// The governor that keeps a processor at its highest frequency.
const PERFORMANCE: &str = "performance";

/// Returns the release of the kernel.
pub(super) fn kernel() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

/// Returns the name of the processor; of an unknown one the architecture.
pub(super) fn name(roots: &HostRoots) -> String {
    let text = trimmed(&roots.proc.join("cpuinfo")).unwrap_or_default();
    name_in(&text).unwrap_or_else(|| {
        let uname = rustix::system::uname();
        uname.machine().to_string_lossy().into_owned()
    })
}

/// Returns the number of processors that this process may use.
pub(super) fn count() -> u32 {
    let count = thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the scaling governor: of processors with different ones the first that is not `performance`.
pub(super) fn governor(roots: &HostRoots) -> Option<String> {
    let directory = roots.sys.join("devices/system/cpu");
    let processors = names(&directory)
        .into_iter()
        .filter(|name| is_processor(name));
    let governor = |name: String| trimmed(&directory.join(name).join("cpufreq/scaling_governor"));
    let governors: Vec<String> = processors.filter_map(governor).collect();
    let slow = governors.iter().find(|governor| *governor != PERFORMANCE);
    slow.or(governors.first()).cloned()
}

/// Returns the clock source of the kernel.
pub(super) fn clock_source(roots: &HostRoots) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
