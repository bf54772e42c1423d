//! Records the revision that a release is built from: `--version` prints it.

use std::{env, fs, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RDPIPE_REVISION");
    if let Some(revision) = revision() {
        println!("cargo::rustc-env=RDPIPE_REVISION={revision}");
    }
}

/// Returns the revision that the caller names, that of the package, or that of the repository; none for a development
/// build, which a commit would compile again.
fn revision() -> Option<String> {
    if let Some(given) = env::var("RDPIPE_REVISION")
        .ok()
        .filter(|text| !text.is_empty())
    {
        return Some(given);
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    if let Ok(packed) = fs::read_to_string(PACKED) {
        println!("cargo::rerun-if-changed={PACKED}");
        let (_, rest) = packed.split_once("\"sha1\": \"")?;
        return Some(rest.chars().take(DIGITS).collect());
    }
    for path in ["src", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    // It changes with each commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let head = git(&["rev-parse", "HEAD"])?;
    let changed = git(&[
        "status",
        "--porcelain",
        "--",
        "src",
        "Cargo.toml",
        "Cargo.lock",
    ])?;
    let mark = if changed.is_empty() { "" } else { ", changed" };
    Some(format!("{}{mark}", head.get(..DIGITS)?))
}

/// The file in which `cargo package` records the revision.
const PACKED: &str = ".cargo_vcs_info.json";

/// The digits of a revision that are shown.
const DIGITS: usize = 12;

/// Returns what git prints here; none without git or a repository.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
