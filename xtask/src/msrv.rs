//! The Rust versions that dependencies need.

use serde_json::Value;

/// Fewer packages than this are a sign that the metadata was not understood.
const FEWEST: usize = 50;

/// Checks that no package in the output of `cargo metadata` needs a newer Rust than `package` promises.
pub(crate) fn check(metadata: &str, package: &str) -> Result<String, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let named = packages.iter().find(|one| one["name"] == package);
    let ours = named.and_then(|one| one["rust_version"].as_str());
    let ours = ours.ok_or_else(|| format!("{package} promises no version of Rust"))?;
    // As much as cargo says about the platform that it was asked for: the others are not built here.
    let used: Vec<&Value> = metadata["resolve"]["nodes"]
        .as_array()
        .map(|nodes| nodes.iter().map(|node| &node["id"]).collect())
        .unwrap_or_default();
    let packages = packages
        .iter()
        .filter(|one| used.is_empty() || used.contains(&&one["id"]));
    let mut count = 0;
    let mut newer = Vec::new();
    for one in packages {
        count += 1;
        let Some(needed) = one["rust_version"].as_str() else {
            continue;
        };
        if parts(needed) > parts(ours) {
            let name = one["name"].as_str().unwrap_or_default();
            let version = one["version"].as_str().unwrap_or_default();
            newer.push(format!(
                "{name} {version} needs Rust {needed}, we promise {ours}\n"
            ));
        }
    }
    if count < FEWEST {
        return Err(format!("read only {count} packages out of cargo metadata"));
    }
    let text = format!(
        "{}{count} packages, {} too new for Rust {ours}\n",
        newer.concat(),
        newer.len()
    );
    if newer.is_empty() {
        Ok(text)
    } else {
        Err(text)
    }
}

/// Returns the parts of a version, which compare as the version does: 1.9 is less than 1.85.
fn parts(version: &str) -> [u32; 3] {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(needed: &str) -> String {
        let package = |name: String, version: &str| json!({ "id": name, "name": name, "version": "1.2.3", "rust_version": version });
        let mut packages: Vec<Value> = (0..FEWEST)
            .map(|number| package(number.to_string(), "1.9"))
            .collect();
        packages.push(package("ours".to_owned(), "1.85"));
        packages.push(package("theirs".to_owned(), needed));
        json!({ "packages": packages }).to_string()
    }

    #[test]
    fn an_older_dependency_is_allowed() {
        let text = check(&metadata("1.85.0"), "ours").unwrap();
        assert_eq!(text, "52 packages, 0 too new for Rust 1.85\n");
    }

    #[test]
    fn a_newer_dependency_is_named() {
        let why = check(&metadata("1.85.1"), "ours").unwrap_err();
        let named = "theirs 1.2.3 needs Rust 1.85.1, we promise 1.85\n";
        assert!(why.starts_with(named), "{why}");
    }

    #[test]
    fn metadata_without_packages_is_an_error() {
        assert!(check("{\"packages\": []}", "ours").is_err());
        assert!(check("", "ours").is_err());
    }
}
