//! What the scripts of rdpipe count, parse, compare and report. Bash boots, installs, makes namespaces and runs;
//! everything that reads text to make a decision of it is here, with tests.

mod copies;
mod figures;
mod fuzz;
mod lock;
#[cfg(feature = "manual")]
mod manual;
mod msrv;
mod page;
mod ratios;
mod sets;
mod sockets;
mod tally;

use std::{
    env,
    fmt::Write,
    fs,
    io::{self, Read},
    process::ExitCode,
};

use self::ratios::Headings;

const USAGE: &str = "\
usage: cargo run --locked -p xtask -- COMMAND
  count LOG                     the tests of a log of `cargo test`: passed, failed, skipped
  failed LOG                    the names of the failed tests, if nothing else failed
  msrv PACKAGE                  from `cargo metadata` on stdin: no dependency needs a newer Rust than PACKAGE promises
  block PAGE LANGUAGE NUMBER    that fenced block of a page
  without-package NAME          the lock file on stdin, without that package
  fuzz TARGET LOG               what a run of libFuzzer did
  ratios FILE [OLD NEW WANTED]  the table of scripts/bench --against, or with other headings; ratios below WANTED are
                                marked
  median FILE COLUMN            of the numbers in a column of FILE
  least FILE COLUMN, most FILE COLUMN
  calc EXPRESSION               numbers and + - * / with spaces between them
  figures WHAT more|less CONTENDER FILE COLUMN EXPRESSION
                                lines for `ratios`; `v` in EXPRESSION is the number in the column
  calls FILE                    the system calls that perf or strace counted, without reads of the clock
  verdict WHAT VALUE RELATION WANTED
  set small|mixed|one|sparse PLACE COUNT
                                makes files for scripts/bench copy in the new directory PLACE
  copies FILE                   the report of scripts/bench copy
  sent FILE                     the bytes that each TCP connection sent, most first, from samples of `ss -tinOH`
  manual --prefix DIR           writes man pages and shell completions below DIR (with --features manual)";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns what a command prints, or the reason why it fails.
fn run(words: &[&str]) -> Result<String, String> {
    match words {
        ["count", log] => Ok(tally::count(&read(log)?).to_string()),
        ["failed", log] => Ok(tally::failed(&read(log)?)?.join("\n") + "\n"),
        ["msrv", package] => msrv::check(&stdin()?, package),
        ["block", name, language, number] => {
            let number = number.parse().map_err(|_| USAGE)?;
            let block = page::block(&read(name)?, language, number);
            block.ok_or_else(|| format!("{name} has no block {number} of {language}"))
        }
        ["without-package", name] => Ok(lock::without(&stdin()?, name)),
        ["fuzz", target, log] => fuzz::report(target, &read(log)?),
        ["ratios", figures] => Ok(ratios::table(&read(figures)?, &Headings::REVISIONS)),
        ["ratios", figures, old, new, wanted] => {
            let wanted = wanted.parse().map_err(|_| USAGE)?;
            Ok(ratios::table(
                &read(figures)?,
                &Headings { old, new, wanted },
            ))
        }
        ["median", file, number] => Ok(line(figures::median(&numbers(file, number)?))),
        ["least", file, number] => Ok(line(
            numbers(file, number)?
                .into_iter()
                .fold(f64::INFINITY, f64::min),
        )),
        ["most", file, number] => Ok(line(numbers(file, number)?.into_iter().fold(0.0, f64::max))),
        ["calc", expression] => figures::calculate(expression).map(line),
        ["figures", what, better, contender, file, number, expression] => {
            let values = numbers(file, number)?;
            figures::lines([what, better, contender], &values, expression)
        }
        ["calls", file] => {
            let calls = figures::calls(&read(file)?);
            calls
                .map(line)
                .ok_or_else(|| format!("{file} counts no system calls"))
        }
        ["verdict", what, value, relation, wanted] => {
            let number = |text: &str| text.parse().map_err(|_| USAGE);
            Ok(figures::verdict(
                what,
                number(value)?,
                relation,
                number(wanted)?,
            ))
        }
        ["set", set, place, count] => {
            let count = count.parse().map_err(|_| USAGE)?;
            sets::make(set, place.as_ref(), count).map(|()| String::new())
        }
        ["sent", samples] => {
            let mut text = String::new();
            for bytes in sockets::sent(&read(samples)?) {
                let _ = writeln!(text, "{bytes}");
            }
            Ok(text)
        }
        ["copies", records] => Ok(copies::report(&read(records)?)),
        #[cfg(feature = "manual")]
        ["manual", "--prefix", prefix] => manual::install(prefix.as_ref()),
        _ => Err(USAGE.to_owned()),
    }
}

/// Returns the numbers in a column, counted from 1, of a file.
fn numbers(path: &str, column: &str) -> Result<Vec<f64>, String> {
    match column.parse() {
        Ok(column) if column > 0 => Ok(figures::column(&read(path)?, column)),
        _ => Err(USAGE.to_owned()),
    }
}

fn line(value: f64) -> String {
    format!("{value}\n")
}

/// Returns a file's text. What a log holds beside text is replaced.
fn read(path: &str) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn stdin() -> Result<String, String> {
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    read.map_err(|error| format!("cannot read stdin: {error}"))?;
    Ok(text)
}
