//! README, CONTRIBUTING, SECURITY, the pages of `docs/` and that of `tests/`: every link leads somewhere, every command
//! in them is one that the programs accept, and their lines are short.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, iter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The most lines of README: a user in a hurry reads it in two minutes.
const MAX_README_LINES: usize = 200;

/// The most lines of docs/architecture.md: who carries on the work reads it in half an hour.
const MAX_ARCHITECTURE_LINES: usize = 400;

/// The most bytes of CONTRIBUTING: it is for the first day.
const MAX_CONTRIBUTING_BYTES: usize = 12 << 10;

/// The most characters of a line of prose, as of a line of a comment.
const MAX_LINE_CHARS: usize = 120;

#[test]
fn the_first_pages_are_short() {
    let lines = |name: &str| page(name).text.lines().count();
    let (readme, architecture) = (lines("README.md"), lines("docs/architecture.md"));
    assert!(readme <= MAX_README_LINES, "README.md: {readme} lines");
    assert!(
        architecture <= MAX_ARCHITECTURE_LINES,
        "docs/architecture.md: {architecture} lines"
    );
    let bytes = page("CONTRIBUTING.md").text.len();
    assert!(
        bytes <= MAX_CONTRIBUTING_BYTES,
        "CONTRIBUTING.md: {bytes} bytes"
    );
}

/// Rows of tables, code, HTML and pictures may be longer.
#[test]
fn lines_of_prose_are_short() {
    let mut long = Vec::new();
    for page in pages() {
        let is_prose = |line: &&str| !["|", "<", "!["].iter().any(|mark| line.starts_with(mark));
        for line in page.prose().filter(|line| is_prose(&line.trim_start())) {
            if line.chars().count() > MAX_LINE_CHARS {
                long.push(format!("{}: {line}", page.name));
            }
        }
    }
    none(&long);
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = pages();
    let mut count = 0;
    let mut broken = Vec::new();
    for page in &pages {
        for link in page.links() {
            if link.contains("://") {
                continue;
            }
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => root().join(&page.name),
                path => root().join(&page.name).parent().unwrap().join(path),
            };
            let has_anchor = || {
                let text = fs::read_to_string(&target).unwrap_or_default();
                anchor.is_empty() || anchors(&text).contains(anchor)
            };
            let lost = !target.exists() || !has_anchor();
            if lost {
                broken.push(format!("{}: {link}", page.name));
            }
        }
    }
    assert!(count > 30, "{count} links?");
    none(&broken);
}

#[test]
fn every_path_in_the_text_exists() {
    let mut broken = Vec::new();
    for page in pages() {
        for path in page.paths() {
            if !root().join(&path).exists() {
                broken.push(format!("{}: {path}", page.name));
            }
        }
    }
    none(&broken);
}

/// `scripts/consumer` builds a crate with the lines of docs/library.md, so those of README.md are to be the same.
#[test]
fn the_packages_to_optimise_are_the_same_on_both_pages() {
    let of = |name: &str| -> Vec<String> {
        let text = page(name).text;
        let lines = text.lines().filter(|line| line.contains(".opt-level = "));
        lines.map(str::to_owned).collect()
    };
    assert!(of("README.md").len() > 3);
    assert_eq!(of("README.md"), of("docs/library.md"));
}

/// docs/verbs.md explains the code of two examples, so each piece of code on it is a piece of theirs.
#[test]
fn the_code_on_the_page_of_verbs_is_that_of_the_examples() {
    let names = [
        "verbs_send_recv.rs",
        "verbs_write_read.rs",
        "common/verbs.rs",
    ];
    let sources = names.map(|name| fs::read_to_string(root().join("examples").join(name)).unwrap());
    let text = page("docs/verbs.md").text;
    let blocks = text.split("\n```rust\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() > 5, "{} blocks?", blocks.len());
    let strange = blocks
        .iter()
        .filter(|block| !sources.iter().any(|source| source.contains(**block)));
    none(&strange.map(ToString::to_string).collect::<Vec<_>>());
}

/// README shows the first figures of docs/benchmarks.md.
#[test]
fn the_figures_on_the_front_page_are_those_of_the_benchmarks() {
    let benchmarks = page("docs/benchmarks.md");
    let readme = page("README.md");
    let figures = readme.text.lines().filter(|line| {
        let is_row = line.starts_with("| ");
        is_row && (line.contains(" GB/s") || line.contains("rdpipe with"))
    });
    let figures: Vec<_> = figures.collect();
    assert!(figures.len() >= 4, "{figures:?}");
    for row in figures {
        assert!(benchmarks.text.contains(row), "{row}");
    }
}

#[test]
fn every_command_in_a_console_block_parses() {
    let mut seen = BTreeMap::new();
    let mut broken = Vec::new();
    for page in pages() {
        for words in page.commands() {
            *seen.entry(words[0].clone()).or_insert(0) += 1;
            if let Err(why) = check(&words) {
                broken.push(format!("{}: {}: {why}", page.name, words.join(" ")));
            }
        }
    }
    none(&broken);
    for program in [
        "rdpipe",
        "rdcp",
        "rdforward",
        "rdperf",
        "rdsend",
        "rdrecv",
        "rdcat",
        "rdsh",
        "cargo",
    ] {
        assert!(seen.contains_key(program), "no {program} in {seen:?}");
    }
}

#[test]
fn every_command_in_a_help_text_parses() {
    for program in rdpipe::cli::commands() {
        let help = program.get_after_help().expect("examples").to_string();
        let commands = commands_in(&help);
        assert!(!commands.is_empty(), "{}: no example", program.get_name());
        for words in commands {
            let checked = check(&words);
            assert_eq!(checked, Ok(()), "{}", words.join(" "));
        }
    }
}

#[test]
fn every_test_that_holds_a_promise_exists() {
    let mut rows = Vec::new();
    for (name, head) in [
        ("tests/README.md", "| promise | tests |"),
        ("docs/security.md", "| holds | shown by |"),
    ] {
        let page = page(name);
        for table in page.text.split(head).skip(1) {
            let table = table.lines().skip(2).map(str::to_owned);
            rows.extend(table.take_while(|line| line.starts_with('|')));
        }
    }
    assert!(rows.len() > 40, "{rows:?}");
    let mut broken = Vec::new();
    for row in rows {
        let tests = row.trim_matches('|').rsplit('|').next().unwrap();
        for group in tests.split(';') {
            let mut names = code_spans(group).into_iter();
            let binary = names.next().expect("a test binary");
            let sources = sources_of(&binary);
            assert!(!sources.is_empty(), "no test binary {binary}");
            for name in names {
                let declared = format!("fn {name}");
                let is_declared = |text: &String| {
                    let mut places = text.match_indices(&declared);
                    places.any(|(at, _)| text[at + declared.len()..].starts_with(['(', '<']))
                };
                if !sources.iter().any(is_declared) {
                    broken.push(format!("{binary} {name}"));
                }
            }
        }
    }
    none(&broken);
}

/// The sources of a test binary; those of the library for `lib`, of a fuzz target for a sentence that begins with one.
fn sources_of(binary: &str) -> Vec<String> {
    let mut files = Vec::new();
    let single = root().join(format!("tests/{binary}.rs"));
    let module = root().join("tests/programs").join(binary);
    let folder = if module.exists() {
        module
    } else {
        root().join("tests").join(binary)
    };
    let member = root().join("examples").join(binary).join("tests");
    let fuzzed = root().join(format!("fuzz/fuzz_targets/{binary}.rs"));
    if binary == "lib" {
        collect(&root().join("src"), &mut files);
    } else if single.exists() {
        files.push(single);
    } else if folder.exists() {
        collect(&folder, &mut files);
    } else if member.exists() {
        collect(&member, &mut files);
    } else if fuzzed.exists() {
        files.push(fuzzed);
    }
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    files.iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// A page of the documentation.
struct Page {
    /// Its path below the root of the repository.
    name: String,
    text: String,
}

impl Page {
    /// The lines outside of fenced blocks.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut fenced = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
    }

    /// The targets of all links.
    fn links(&self) -> Vec<String> {
        let mut links = Vec::new();
        for line in self.prose() {
            let line = without_code(line);
            for (at, _) in line.match_indices("](") {
                let rest = &line[at + 2..];
                let end = rest.find(')').expect("a link ends on its line");
                links.push(rest[..end].to_owned());
            }
        }
        links
    }

    /// The paths of the repository that stand in code spans and blocks, up to the first placeholder.
    fn paths(&self) -> BTreeSet<String> {
        const ROOTS: [&str; 6] = ["docs/", "examples/", "fuzz/", "scripts/", "src/", "tests/"];
        let words = self.text.split(|c: char| !is_path(c));
        let mut paths = BTreeSet::new();
        for word in words.filter(|word| ROOTS.iter().any(|root| word.starts_with(root))) {
            let word = word.trim_end_matches('.');
            let parts = word.split('/');
            let fixed = parts.take_while(|part| !part.contains(|c: char| c == '*' || is_shout(c)));
            paths.insert(fixed.collect::<Vec<_>>().join("/"));
        }
        paths
    }

    /// The commands in blocks of the language `console`.
    fn commands(&self) -> Vec<Vec<String>> {
        let blocks = self.text.split("\n```console\n").skip(1);
        let block = |text: &str| text.split("\n```").next().map(commands_in);
        blocks.filter_map(block).flatten().collect()
    }
}

/// Whether a path may contain this character.
fn is_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-*".contains(c)
}

/// Whether this character marks a placeholder, as in `NAME.rs`.
fn is_shout(c: char) -> bool {
    c.is_ascii_uppercase()
}

fn pages() -> Vec<Page> {
    let docs = fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_page = |name: &String| Path::new(name).extension().is_some_and(|end| end == "md");
    let docs = docs.filter(is_page);
    let mut names: Vec<String> = docs.map(|name| format!("docs/{name}")).collect();
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/README.md",
    ];
    names.extend(others.map(str::to_owned));
    names.sort();
    names.iter().map(|name| page(name)).collect()
}

fn page(name: &str) -> Page {
    Page {
        name: name.to_owned(),
        text: fs::read_to_string(root().join(name)).unwrap(),
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let page = Page {
        name: String::new(),
        text: text.to_owned(),
    };
    let headings = page.prose().filter(|line| line.starts_with('#'));
    let mut anchors = BTreeSet::new();
    for heading in headings {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        let anchor: String = kept.collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = iter::once(anchor.clone()).chain(numbered);
        let free = names.find(|name| !anchors.contains(name)).unwrap();
        anchors.insert(free);
    }
    anchors
}

fn code_spans(line: &str) -> Vec<String> {
    line.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The commands of a listing, each as its words: what follows a prompt, and every line of output that tells the user to
/// type one of our programs.
fn commands_in(listing: &str) -> Vec<Vec<String>> {
    let joined = listing.replace("\\\n", " ");
    let mut commands = Vec::new();
    for line in joined.lines() {
        let line = line.trim();
        let typed = match line.split_once("$ ") {
            Some((prompt, typed)) if is_prompt(prompt) => typed,
            _ => line,
        };
        let is_typed = typed.len() < line.len();
        if !is_typed && shlex::split(typed).is_none() {
            continue; // prose with an apostrophe
        }
        let simple = simple_commands(typed).into_iter();
        commands.extend(simple.filter(|words| is_typed || is_ours(&words[0])));
    }
    commands
}

/// Whether this stands before the `$` of a prompt: nothing, or the name of a host.
fn is_prompt(text: &str) -> bool {
    let host = text.trim().trim_start_matches('[').trim_end_matches(']');
    host.is_empty() || host.starts_with("host")
}

fn is_ours(program: &str) -> bool {
    [
        "rdpipe",
        "rdcp",
        "rdforward",
        "rdperf",
        "rdsend",
        "rdrecv",
        "rdcat",
        "rdsh",
    ]
    .contains(&program)
}

/// The simple commands of a line of shell, without assignments, redirections and comments.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![String::new()];
    let mut quote = None;
    let mut previous = ' ';
    for c in line.chars() {
        let command = commands.last_mut().unwrap();
        match (quote, c) {
            (None, '#') if previous.is_whitespace() => break,
            (None, '|' | ';' | '&') => commands.push(String::new()),
            (None, '<' | '>') => command.extend([' ', REDIRECTION]),
            _ => command.push(c),
        }
        quote = match (quote, c) {
            (None, '\'' | '"') => Some(c),
            (Some(open), c) if open == c => None,
            (quote, _) => quote,
        };
        previous = c;
    }
    let words = commands.iter().map(|command| {
        let words = shlex::split(command).unwrap_or_else(|| panic!("quotes: {line}"));
        let mut words = words.into_iter();
        let mut kept: Vec<String> = Vec::new();
        while let Some(word) = words.next() {
            if let Some(file) = word.strip_prefix(REDIRECTION) {
                if file.is_empty() {
                    words.next();
                }
            } else if !kept.is_empty() || !is_assignment(&word) {
                kept.push(word);
            }
        }
        kept
    });
    words.filter(|words| !words.is_empty()).collect()
}

/// Stands for an operator that redirects, outside of quotes.
const REDIRECTION: char = '\u{1}';

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Whether a command can be typed as it stands here.
fn check(words: &[String]) -> Result<(), String> {
    let program = words[0].as_str();
    if program.starts_with("scripts/") {
        return exists(program);
    }
    if program == "cargo" {
        return check_cargo(words);
    }
    if !is_ours(program) {
        return Ok(());
    }
    if program == "rdsh" {
        return rdpipe::cli::rdsh::check(words[1..].iter().map(Into::into));
    }
    let mut commands = rdpipe::cli::commands().into_iter();
    let command = commands.find(|command| command.get_name() == program);
    let parsed = command.unwrap().try_get_matches_from(words);
    parsed.map_err(|error| error.to_string())?;
    if program == "rdpipe" {
        return check_dry_run(&words[1..]);
    }
    Ok(())
}

/// Whether `rdpipe -n` accepts these arguments.
fn check_dry_run(arguments: &[String]) -> Result<(), String> {
    let output = Command::new(env!("CARGO_BIN_EXE_rdpipe"))
        .arg("-n")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Whether the targets and packages that a command of cargo names exist.
fn check_cargo(words: &[String]) -> Result<(), String> {
    for pair in words.windows(2) {
        match pair[0].as_str() {
            "--example" => {
                let member = format!("examples/frameworks/{}.rs", pair[1]);
                exists(&format!("examples/{}.rs", pair[1])).or_else(|_| exists(&member))?;
            }
            "--test" => {
                let folder = format!("tests/{}/main.rs", pair[1]);
                exists(&format!("tests/{}.rs", pair[1])).or_else(|_| exists(&folder))?;
            }
            "-p" | "--package" => {
                let member = format!("examples/{}/Cargo.toml", pair[1]);
                exists(&format!("{}/Cargo.toml", pair[1])).or_else(|_| exists(&member))?;
            }
            "--features" => {
                let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
                let inside = words.iter().any(|word| word == "-p");
                let known = |name: &str| manifest.contains(&format!("\n{name} = ["));
                if let Some(name) = pair[1].split(',').find(|name| !inside && !known(name)) {
                    return Err(format!("no feature {name}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn exists(path: &str) -> Result<(), String> {
    let found = root().join(path).exists();
    found.then_some(()).ok_or_else(|| format!("no {path}"))
}

/// Fails with this list, unless it is empty.
#[track_caller]
fn none(broken: &[String]) {
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}
