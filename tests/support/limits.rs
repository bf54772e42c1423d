//! Time limits of tests, longer on a machine that is slow or busy.
//!
//! A limit is a guard against a hang, never a budget: several times what a busy machine needs. `RDPIPE_TEST_SLOWNESS`
//! is the one setting for machines that are slower still: a number that multiplies all of them.
#![allow(
    dead_code,
    reason = "each test binary, and that of the library, uses a part of this module"
)]

use std::{env, fs, thread, time::Duration};

/// Returns a guard against a hang: `usual`, or a multiple of it on this machine.
pub(crate) fn limit(usual: Duration) -> Duration {
    usual.mul_f64(slowness(EMULATED_FOR_LIMITS))
}

/// Returns a timeout for the program under test that the test waits out: as short as this machine allows, and long
/// enough that a peer which only has to wait for a processor is not taken for dead: a second at least.
pub(crate) fn patience(usual: Duration) -> Duration {
    let longer = usual.mul_f64(slowness(EMULATED_FOR_PATIENCE).ceil());
    longer.max(Duration::from_secs(1))
}

/// Returns the guard of the body of a test, and of every wait without a guard of its own: what takes longer hangs.
///
/// The guard is shorter than the silence after which `scripts/test` ends the guest, so a test that hangs fails by its
/// name.
pub(crate) fn generous() -> Duration {
    let longest = LONGEST_HANG.mul_f64(given_slowness().unwrap_or(1.0));
    limit(Duration::from_secs(60)).min(longest)
}

/// Returns the time within which a program must detect an event that it promises to detect within a second.
///
/// The time is ten times the promise, and more on a busy machine, but always shorter than the 30 s after which a silent
/// peer counts as dead. So a program that ends in time did not wait for that timeout. The load does not show that
/// another guest of the host takes the processor just now, so an idle machine gets ten seconds too.
pub(crate) fn soon() -> Duration {
    limit(Duration::from_secs(10)).min(Duration::from_secs(20))
}

/// The factor of a limit on an emulated processor. It is some 17 times slower than a real one, but the network and the
/// disk are not.
const EMULATED_FOR_LIMITS: f64 = 10.0;

/// The factor of a timeout in an emulated guest, which runs little besides the test. The tests that run there choose
/// longer timeouts themselves.
const EMULATED_FOR_PATIENCE: f64 = 4.0;

/// The largest factor of a busy machine: a higher load comes from a build, whose tasks come and go.
const MOST_BUSY: f64 = 8.0;

/// The largest share of the processors that other guests of the host are believed to take.
const MOST_STOLEN: f64 = 0.75;

/// The longest time that the body of a test gets. `scripts/test` ends the guest after 13 minutes without a line of
/// output.
const LONGEST_HANG: Duration = Duration::from_secs(600);

/// Returns the value of `RDPIPE_TEST_SLOWNESS`, if it is set. Panics if it is no number of 1 or more.
fn given_slowness() -> Option<f64> {
    let given = env::var("RDPIPE_TEST_SLOWNESS").ok()?;
    let factor = given.parse::<f64>().ok().filter(|factor| *factor >= 1.0);
    Some(factor.expect("RDPIPE_TEST_SLOWNESS is a number, 1 or more"))
}

/// Returns the factor that this machine is slower than an idle one: `RDPIPE_TEST_SLOWNESS` where that is set, else the
/// number of tasks for each processor, divided by the share of a processor that this machine gets, times `emulated`
/// where the hosts under test are emulated.
fn slowness(emulated: f64) -> f64 {
    if let Some(given) = given_slowness() {
        return given;
    }
    let is_emulated = env::var("RDPIPE_RIG").is_ok_and(|rig| rig.ends_with("-tcg"));
    let busy = load() / (1.0 - stolen());
    busy.clamp(1.0, MOST_BUSY) * if is_emulated { emulated } else { 1.0 }
}

/// Returns the tasks that run or wait for a processor, for each processor: those of the last minute, or those of this
/// moment, if they are more. Other work may have begun a moment ago.
fn load() -> f64 {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // Three averages, the first of them over a minute; then the tasks that run, and all tasks: "0.20 0.18 0.12 1/80
    // ...".
    let fields: Vec<&str> = averages.split([' ', '/']).collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    let tasks = number(0).unwrap_or(0.0).max(number(3).unwrap_or(0.0));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    tasks / u32::try_from(processors).map_or(1.0, f64::from)
}

/// Returns the share of the processors' time that other guests of the host took from this machine since it was started:
/// of the time in which it had work.
fn stolen() -> f64 {
    let times = fs::read_to_string("/proc/stat").unwrap_or_default();
    let of_all = times.lines().next().unwrap_or_default().split_whitespace();
    let times: Vec<f64> = of_all.filter_map(|time| time.parse().ok()).collect();
    let [user, nice, system, _idle, _waiting, irq, softirq, steal, ..] = times[..] else {
        return 0.0;
    };
    let busy = user + nice + system + irq + softirq + steal;
    (steal / busy.max(1.0)).min(MOST_STOLEN)
}
