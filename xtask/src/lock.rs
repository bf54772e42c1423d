//! Cargo's lock file.

/// Returns a lock file without the entry of one package.
pub(crate) fn without(lock: &str, package: &str) -> String {
    let name = format!("\nname = \"{package}\"\n");
    let entries = lock.split("\n\n").filter(|entry| !entry.contains(&name));
    entries.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_package_goes_and_the_others_stay() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"ab\"\n";
        let expected = "version = 4\n\n[[package]]\nname = \"ab\"\n";
        assert_eq!(without(lock, "a"), expected);
        assert_eq!(without(lock, "b"), lock);
    }
}
