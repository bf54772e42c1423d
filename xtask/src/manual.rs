//! Man pages and shell completions, from the programs' own command lines.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Arg, Command, ValueHint};
use clap_complete::{Shell, generate};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

/// Writes man pages and completions below `prefix`, and returns the list of files.
pub(crate) fn install(prefix: &Path) -> Result<String, String> {
    let mut list = String::new();
    for command in rdpipe::cli::commands() {
        for (path, contents) in files(&command).map_err(|error| error.to_string())? {
            let path = prefix.join(path);
            let folder = path.parent().expect("below the prefix");
            let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, contents));
            written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            let _ = writeln!(list, "{}", path.display());
        }
    }
    Ok(list)
}

/// Returns the files of one program: their paths below the prefix, and their contents.
fn files(command: &Command) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let name = command.get_name();
    let mut files = vec![(format!("share/man/man1/{name}.1").into(), page(command)?)];
    for (shell, path) in [
        (
            Shell::Bash,
            format!("share/bash-completion/completions/{name}"),
        ),
        (Shell::Zsh, format!("share/zsh/site-functions/_{name}")),
        (
            Shell::Fish,
            format!("share/fish/vendor_completions.d/{name}.fish"),
        ),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut command.clone(), name, &mut script);
        let mut hints = command.get_positionals().map(Arg::get_value_hint);
        if hints.any(|hint| hint == ValueHint::Hostname) {
            script.extend(hosts(shell).replace("NAME", name).into_bytes());
        }
        files.push((path.into(), script));
    }
    Ok(files)
}

/// Returns the lines that complete the names of hosts: `clap_complete` makes them for zsh only.
fn hosts(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => BASH_HOSTS,
        Shell::Fish => "complete -c NAME -a '(__fish_print_hostnames)'\n",
        _ => "",
    }
}

/// The hosts of `/etc/hosts` and of the user's ssh, where the definitions of `clap_complete` have nothing but options.
const BASH_HOSTS: &str = r#"
_NAME_hosts() {
    _NAME "$@"
    local word=$2 hosts
    [[ $word == -* || ( $COMP_CWORD -gt 1 && ${#COMPREPLY[@]} -gt 0 ) ]] && return 0
    hosts=$({
        compgen -A hostname
        sed -n 's/^[[:space:]]*[Hh]ost[[:space:]=]//p' ~/.ssh/config | tr ' ' '\n' | grep -v '[*?!]'
        sed -n 's/^\([[:alnum:]][^ ]*\) .*/\1/p' ~/.ssh/known_hosts | tr , '\n'
    } 2>/dev/null)
    COMPREPLY+=($(compgen -W "$hosts" -- "$word"))
}
complete -F _NAME_hosts -o bashdefault -o default NAME
"#;

/// Returns the man page of a program. What its help teaches after the options are sections of the page.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let name = command.get_name().to_owned();
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone())
        .source(format!("rdpipe {version}"))
        .manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    for form in command.get_subcommands() {
        page.extend(form_section(command, form)?);
    }
    let help = command.get_after_help().map(ToString::to_string);
    let mut roff = Roff::new();
    let mut open = String::new();
    for section in sections(&help.unwrap_or_default()) {
        if section.heading != open {
            roff.control("SH", [section.heading.as_str()]);
        }
        open = section.heading;
        if let Some(title) = &section.title {
            roff.control("SS", [title.as_str()]);
        }
        roff.control("nf", []);
        for line in section.lines {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = rdpipe::cli::commands().into_iter();
    let others = others.map(|other| other.get_name().to_owned());
    let others: Vec<String> = others.filter(|other| *other != name).collect();
    roff.text([roman(format!("{}(1)", others.join("(1), ")))]);
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Returns the section about a form of a program that begins with a word: what its help has, without the options that
/// it shares with the other forms.
fn form_section(program: &Command, form: &Command) -> io::Result<Vec<u8>> {
    let word = form.get_name();
    let mut section = Vec::new();
    let mut roff = Roff::new();
    let heading = format!("{} {word}", program.get_name()).to_uppercase();
    roff.control("SH", [heading.as_str()]);
    let about = form.get_about().map(ToString::to_string);
    let shared = "The other options are those above.";
    roff.text([roman(format!("{}. {shared}", about.unwrap_or_default()))]);
    roff.to_writer(&mut section)?;

    let is_shared = |option: &Arg| {
        let mut options = program.get_arguments();
        options
            .any(|other| other.get_id() == option.get_id() && other.get_help() == option.get_help())
    };
    let own = form.get_arguments().filter(|option| !is_shared(option));
    let own = Command::new("form")
        .disable_help_flag(true)
        .args(own.cloned());
    let mut options = Vec::new();
    Man::new(own).render_options_section(&mut options)?;
    let options = String::from_utf8_lossy(&options).replace(".SH OPTIONS\n", ".SS Options\n");
    section.extend(options.into_bytes());

    let help = form.get_after_help().map(ToString::to_string);
    let mut roff = Roff::new();
    for part in sections(&help.unwrap_or_default()) {
        // Of the exit codes, the page has one table.
        if part.heading != "EXIT STATUS" {
            let title = part.title.unwrap_or(part.heading);
            roff.control("SS", [title.as_str()]);
            roff.control("nf", []);
            for line in part.lines {
                roff.text([roman(line)]);
            }
            roff.control("fi", []);
        }
    }
    roff.to_writer(&mut section)?;
    Ok(section)
}

/// A part of a help text.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    /// The heading of the man page's section, which several parts in a row may share.
    heading: String,
    /// The title of this part, where the heading does not say it.
    title: Option<String>,
    lines: Vec<String>,
}

/// Returns the parts of a help text. A part begins with a line at the left margin that ends in a colon.
fn sections(help: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    for part in help.split("\n\n") {
        let mut lines = part.lines().map(str::to_owned);
        let first = lines.next().unwrap_or_default();
        let title = first.strip_suffix(':').filter(|_| !first.starts_with(' '));
        let Some(title) = title else {
            sections.push(Section {
                heading: "NOTES".to_owned(),
                title: None,
                lines: part.lines().map(str::to_owned).collect(),
            });
            continue;
        };
        let lines: Vec<String> = lines.collect();
        let is_example = lines.iter().any(|line| line.contains("$ "));
        let (heading, title) = if title.starts_with("Exit ") {
            ("EXIT STATUS".to_owned(), None)
        } else if is_example {
            let says_more = !matches!(title, "Example" | "Examples");
            ("EXAMPLES".to_owned(), says_more.then(|| title.to_owned()))
        } else {
            (title.to_uppercase(), None)
        };
        sections.push(Section {
            heading,
            title,
            lines,
        });
    }
    // Parts of one section side by side.
    let mut sorted: Vec<Section> = Vec::new();
    for section in sections {
        let last = sorted
            .iter()
            .rposition(|one| one.heading == section.heading);
        sorted.insert(last.map_or(sorted.len(), |at| at + 1), section);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use std::process::{Command as Process, Output};

    use super::*;

    /// Returns what a program says to these arguments, or nothing if there is no such program.
    fn run(program: &str, arguments: &[&Path]) -> Option<Output> {
        let mut process = Process::new(program);
        process.args(arguments).env("MANWIDTH", "200");
        process
            .env("MAN_KEEP_FORMATTING", "")
            .env_remove("MANPAGER");
        process.env("LC_ALL", "C.UTF-8").env("MANPAGER", "cat");
        process.output().ok()
    }

    #[test]
    fn every_page_has_the_sections_of_its_help() {
        for command in rdpipe::cli::commands() {
            let page = String::from_utf8(page(&command).unwrap()).unwrap();
            for heading in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "\"EXIT STATUS\"",
                "EXAMPLES",
                "\"SEE ALSO\"",
            ] {
                let line = format!("\n.SH {heading}\n");
                assert_eq!(page.matches(&line).count(), 1, "{heading}:\n{page}");
            }
            for form in command.get_subcommands() {
                let form = format!("{} {}", command.get_name(), form.get_name());
                let line = format!("\n.SH \"{}\"\n", form.to_uppercase());
                assert_eq!(page.matches(&line).count(), 1, "{line}:\n{page}");
            }
            assert!(page.contains("\\-\\-timeout"), "{page}");
            assert!(!page.contains("\\-\\-agent"), "{page}");
            let help = command.get_after_help().unwrap().to_string();
            let lines: usize = sections(&help).iter().map(|one| one.lines.len()).sum();
            let blank = help.lines().filter(|line| line.is_empty()).count();
            let titles = help.lines().filter(|line| is_title(line)).count();
            assert_eq!(lines + blank + titles, help.lines().count());
        }
    }

    fn is_title(line: &str) -> bool {
        line.ends_with(':') && !line.starts_with(' ')
    }

    #[test]
    fn man_and_the_shells_read_what_is_installed() {
        let prefix = tempfile::tempdir().unwrap();
        let list = install(prefix.path()).unwrap();
        // A page, and completions for three shells, for each program.
        assert_eq!(
            list.lines().count(),
            4 * rdpipe::cli::commands().len(),
            "{list}"
        );
        let version = run("man", &["--version".as_ref()]);
        // A container may have a script in place of man, which says that there are no pages.
        let man = version.is_some_and(|version| version.stdout.starts_with(b"man "));
        if !man {
            eprintln!(
                "there is no man here: the pages' structure is checked, and not how they look"
            );
        }
        for name in list.lines() {
            let path = Path::new(name);
            let output = match path.extension().and_then(|extension| extension.to_str()) {
                Some("1") if !man => continue,
                Some("1") => run("man", &["--warnings".as_ref(), "-l".as_ref(), path]),
                Some("fish") => run("fish", &["-n".as_ref(), path]),
                _ if name.contains("/zsh/") => run("zsh", &["-n".as_ref(), path]),
                _ => Some(run("bash", &["-n".as_ref(), path]).expect("there is a bash")),
            };
            let Some(output) = output else { continue };
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {errors}");
            assert_eq!(errors, "", "{name}");
            if path.extension().is_some_and(|extension| extension == "1") {
                let text = String::from_utf8_lossy(&output.stdout);
                for shown in [
                    "EXIT STATUS",
                    "  255 ",
                    "EXAMPLES",
                    "$ ",
                    "--timeout <SECS>",
                ] {
                    assert!(text.contains(shown), "{name}: no {shown}:\n{text}");
                }
            }
        }
        let script = fs::read_to_string(
            prefix
                .path()
                .join("share/bash-completion/completions/rdsend"),
        );
        assert!(script.unwrap().contains("--connect-timeout"));
    }

    #[test]
    fn bash_and_fish_complete_the_names_of_hosts() {
        let prefix = tempfile::tempdir().unwrap();
        install(prefix.path()).unwrap();
        let ssh = prefix.path().join(".ssh");
        fs::create_dir(&ssh).unwrap();
        fs::write(ssh.join("config"), "Host store7 *.lan\n  User me\n").unwrap();
        fs::write(
            ssh.join("known_hosts"),
            "store8,10.0.0.8 ssh-ed25519 AAAA\n",
        )
        .unwrap();
        let script = prefix
            .path()
            .join("share/bash-completion/completions/rdsend");
        let fish = prefix
            .path()
            .join("share/fish/vendor_completions.d/rdsend.fish");
        for (shell, line) in [
            (
                "bash",
                format!(
                    ". {}; COMP_WORDS=(rdsend -v sto); COMP_CWORD=2; _rdsend_hosts rdsend sto -v; echo ${{COMPREPLY[*]}}",
                    script.display()
                ),
            ),
            (
                "fish",
                format!("source {}; complete -C 'rdsend -v sto'", fish.display()),
            ),
        ] {
            let run = Process::new(shell)
                .args(["-c", &line])
                .env("HOME", prefix.path())
                .output();
            let Ok(output) = run else {
                eprintln!("SKIPPED: there is no {shell}");
                continue;
            };
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let has_all = said.contains("store7") && said.contains("store8");
            assert!(has_all && !said.contains(".lan"), "{shell}: {output:?}");
        }
    }

    #[test]
    fn parts_of_a_help_become_sections() {
        let help = "Files:\n  $ a\n\nA note.\n\nMore, too:\n  $ b\n\nExit codes:\n  0  ok";
        let headings: Vec<(String, Option<String>)> = sections(help)
            .into_iter()
            .map(|one| (one.heading, one.title))
            .collect();
        let examples = |title: &str| ("EXAMPLES".to_owned(), Some(title.to_owned()));
        assert_eq!(
            headings,
            [
                examples("Files"),
                examples("More, too"),
                ("NOTES".to_owned(), None),
                ("EXIT STATUS".to_owned(), None),
            ]
        );
    }
}
