//! The rules of the house that no compiler checks: what may use what, and what the library depends on. Each test reads
//! the sources, and fails with the places that break its rule.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Most lines of a program's `main.rs`, which parses and dispatches.
const MAX_BIN_LINES: usize = 60;

/// The top folders and files of `src` that are not the library's, from the top down. A row may use rows below it,
/// and each of its members itself; the library may use none of them.
const LAYERS: &[&[&str]] = &[
    &["bin"],
    &["cli"],
    &["hostile"],
    &["copy", "forward", "perf"],
    &["ssh"],
    &["advice", "carry", "reach"],
    &["options"],
    &["fd", "process"],
];

/// The layers of `src/transport`, from the top down.
const TRANSPORT: &[&str] = &["connect", "stream", "rdma", "data", "control"];

/// What the library depends on by itself, without RDMA.
const LIBRARY: &[&str] = &[
    "argon2",
    "aws-lc-rs",
    "blake2",
    "bytes",
    "data-encoding",
    "futures",
    "getrandom",
    "hmac",
    "postcard",
    "rdpipe-digest",
    "rustix",
    "serde",
    "snow",
    "socket2",
    "thiserror",
    "tokio",
    "tokio-util",
    "tracing",
    "zeroize",
];

/// The most packages that the library needs without RDMA, all in all.
const MAX_PACKAGES: usize = 75;

/// The licenses that ask for no more than that they are shown.
const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// What only the programs need: nowhere below the library.
const PROGRAMS: &[&str] = &["anyhow", "clap", "hdrhistogram", "if-addrs", "nix", "shlex"];

#[test]
fn a_program_only_parses_and_dispatches() {
    let sources = sources();
    let bins = sources
        .iter()
        .filter(|source| source.name.starts_with("bin/"));
    let long = bins.filter(|source| source.text.lines().count() > MAX_BIN_LINES);
    broken(long.map(|source| source.name.clone()));
}

#[test]
fn one_file_names_async_rdma() {
    let sources = sources();
    let named = sources
        .iter()
        .filter(|source| source.name != "transport/rdma/link.rs");
    broken(
        named
            .filter(|source| source.code.contains("async_rdma"))
            .map(|source| source.name.clone()),
    );
}

#[test]
fn the_library_names_no_option_of_a_program() {
    let sources = sources();
    let library = sources
        .iter()
        .filter(|source| rank(&source.top()).is_none());
    broken(library.flat_map(|source| {
        let lines = (1..).zip(source.text.lines());
        let named = lines.filter(|(_, line)| names_an_option(line));
        named.map(|(number, line)| format!("{}:{number}: {}", source.name, line.trim()))
    }));
}

#[test]
fn layers_use_what_is_below_them() {
    let sources = sources();
    broken(sources.iter().flat_map(|source| {
        let top = source.top();
        let wrong = source.uses().into_iter().filter(move |path| {
            let used = path[0].as_str();
            match (rank(&top), rank(used)) {
                (_, None) => false,
                (None, Some(_)) => top != "lib",
                (Some(own), Some(other)) => other < own || (other == own && used != top),
            }
        });
        wrong.map(|path| format!("{} uses {}", source.name, path.join("::")))
    }));
}

#[test]
fn transport_is_built_in_layers() {
    let sources = sources();
    let layer_of = |name: &str| TRANSPORT.iter().position(|layer| *layer == name);
    broken(sources.iter().flat_map(|source| {
        let module = source.module();
        let own = match &module[..] {
            [top, layer, ..] if top == "transport" => layer_of(layer),
            _ => None,
        };
        let wrong = source.uses().into_iter().filter(move |path| {
            let used = match &path[..] {
                [top, layer, ..] if top == "transport" => layer_of(layer),
                _ => None,
            };
            matches!((own, used), (Some(own), Some(used)) if used < own)
        });
        wrong.map(|path| format!("{} uses {}", source.name, path.join("::")))
    }));
}

#[test]
fn the_library_alone_brings_nothing_of_the_programs() {
    for features in ["", "rdma"] {
        let direct = dependencies(features, &["--depth", "1"]);
        let mut expected = LIBRARY.to_vec();
        if features == "rdma" {
            expected.extend(["async-rdma", "rdma-sys"]);
        }
        expected.sort_unstable();
        assert_eq!(direct, expected, "features: {features:?}");
        let all = dependencies(features, &[]);
        broken(
            PROGRAMS
                .iter()
                .filter(|name| all.iter().any(|one| one == *name))
                .map(|name| format!("{name} with features {features:?}")),
        );
    }
}

#[test]
fn without_rdma_every_license_is_permissive() {
    let tree = tree("cli,axum,tonic", &["--format", "{p}: {l}"]);
    let packages = tree.lines().filter(|line| !line.ends_with("(*)"));
    let strict = packages.filter(|line| {
        let license = line
            .rsplit(": ")
            .next()
            .expect("a line ends with its license");
        !is_permissive(license)
    });
    broken(strict.map(str::to_owned));
    assert!(is_permissive("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!is_permissive("MIT AND GPL-3.0"));
}

#[test]
fn the_library_alone_is_small() {
    let packages = dependencies("", &[]);
    assert!(packages.len() <= MAX_PACKAGES, "{}", packages.len());
}

/// Returns true if every part of a license expression offers a license that is permissive.
fn is_permissive(license: &str) -> bool {
    let plain = license.replace(['(', ')'], "").replace('/', " OR ");
    let mut parts = plain.split(" AND ");
    parts.all(|part| {
        part.split(" OR ")
            .any(|name| PERMISSIVE.contains(&name.trim()))
    })
}

/// The names of the packages that the library needs with these features, each once, without itself.
fn dependencies(features: &str, options: &[&str]) -> Vec<String> {
    let tree = tree(features, options);
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.retain(|name| name != "rdpipe");
    names.sort_unstable();
    names.dedup();
    names
}

/// What `cargo tree` prints of a build with these features only.
fn tree(features: &str, options: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        // Not --offline: cargo downloads what only other features need.
        .args(["tree", "--locked", "--edges", "normal"])
        .args(["--prefix", "none", "--no-default-features"])
        .args(["--features", features])
        .args(options)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("names are text")
}

/// A file of `src`.
struct Source {
    /// Its path below `src`.
    name: String,
    /// All of it.
    text: String,
    /// Without comments, and without what is compiled for tests only.
    code: String,
}

impl Source {
    /// The first part of its module's path; `lib` for the root.
    fn top(&self) -> String {
        let module = self.module();
        module.first().cloned().unwrap_or_else(|| "lib".to_owned())
    }

    /// The path of its module, without `crate`.
    fn module(&self) -> Vec<String> {
        let name = self.name.trim_end_matches(".rs");
        let mut parts: Vec<String> = name.split('/').map(str::to_owned).collect();
        if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
            parts.pop();
        }
        parts
    }

    /// The paths within the crate that its code names, without `crate`.
    fn uses(&self) -> Vec<Vec<String>> {
        let mut paths = Vec::new();
        for head in ["crate::", "super::"] {
            for (at, _) in self.code.match_indices(head) {
                let before = self.code[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let mut base = Vec::new();
                let mut rest = &self.code[at..];
                if head == "super::" {
                    base = self.module();
                    while let Some(after) = rest.strip_prefix("super::") {
                        base.pop();
                        rest = after;
                    }
                } else {
                    rest = &rest["crate::".len()..];
                }
                expand(&base, rest, &mut paths);
            }
        }
        paths.retain(|path| !path.is_empty());
        paths
    }
}

/// Appends the paths of the tree at the beginning of `text` to `paths`, and returns what follows the tree.
fn expand<'a>(base: &[String], text: &'a str, paths: &mut Vec<Vec<String>>) -> &'a str {
    let mut path = base.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = inner.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                if inner.is_empty() {
                    return inner;
                }
                if let Some(after) = inner.strip_prefix('}') {
                    return after;
                }
                inner = expand(&path, inner, paths);
            }
        }
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        path.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(after) if after.starts_with(|c: char| c.is_alphanumeric() || "_{".contains(c)) => {
                rest = after;
            }
            _ => break,
        }
    }
    paths.push(path);
    // `as name`, `*` and whatever else ends the leaf.
    let end = rest.find(|c: char| ",};".contains(c)).unwrap_or(rest.len());
    &rest[end..]
}

/// The row of the layers in which a top module stands; none for the library's.
fn rank(top: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&top))
}

/// Whether a line of the library names an option, like ` --timeout`.
fn names_an_option(line: &str) -> bool {
    line.match_indices("--").any(|(at, _)| {
        let before = line[..at].chars().next_back().unwrap_or(' ');
        let after = line[at + 2..].chars().next().unwrap_or(' ');
        !before.is_alphanumeric() && before != '-' && after.is_ascii_lowercase()
    })
}

/// Every file of `src` that is not for tests only.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let source = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(path).unwrap();
        Source {
            name: name.to_owned(),
            code: code(&text),
            text,
        }
    };
    let sources: Vec<Source> = files.iter().map(source).collect();
    assert!(sources.len() > 100, "{} files in src?", sources.len());
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name == "tests" || name == "fixtures" {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
}

/// The lines without comments, to where the file's tests begin.
fn code(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod tests {");
    let text = &text[..end.unwrap_or(text.len())];
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.fold(String::new(), |code, line| code + line + "\n")
}

/// Fails with the list of what breaks a rule, if there is any.
fn broken(list: impl Iterator<Item = String>) {
    let mut list: Vec<String> = list.collect();
    list.sort();
    list.dedup();
    assert!(list.is_empty(), "\n{}\n", list.join("\n"));
}
