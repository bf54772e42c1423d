//! The files of `--plot` and `--report`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use futures::executor::block_on;
use tokio::{io::AsyncWriteExt, runtime::Handle};

use super::{
    args::PictureArgs,
    compare,
    report::{page::page, table::has_several_pairs},
};
use crate::{
    cli::shared::{
        exit::Exit,
        message::{Console, sentence},
        run::control_runtime,
    },
    fd::OutputTarget,
    perf::{
        picture::{picture, svg},
        report::document::PerfDocument,
    },
};

/// The files of a run. Each is opened before anything is measured, and has its name when it is complete.
pub(super) struct PictureFiles {
    plot: Option<OutputTarget>,
    page: Option<OutputTarget>,
    runtime: Handle,
}

impl PictureFiles {
    /// Opens the files.
    ///
    /// # Errors
    ///
    /// A file cannot be created. What exists is unchanged.
    pub(super) fn open(args: &PictureArgs, runtime: &Handle) -> anyhow::Result<Self> {
        let open = |path: &Option<PathBuf>| {
            let opened = path.as_deref().map(|path| create(path, runtime));
            opened.transpose()
        };
        Ok(Self {
            plot: open(&args.plot)?,
            page: open(&args.report)?,
            runtime: runtime.clone(),
        })
    }

    /// Writes what was measured. Without a measurement the files stay as they were. Returns the errors, which it has
    /// printed.
    pub(super) fn write(
        self,
        document: &PerfDocument,
        rates: [Option<f64>; 2],
        console: &Console,
    ) -> Vec<String> {
        if self.plot.is_none() && self.page.is_none() {
            return Vec::new();
        }
        if document.series.is_empty() {
            console.warn("nothing was measured, so no picture and no page was written");
            return Vec::new();
        }
        let files = [
            (self.plot, svg(&picture(document))),
            (self.page, page(document, rates)),
        ];
        let mut errors = Vec::new();
        for (file, text) in files {
            let Some(file) = file else { continue };
            let name = file.describe().to_owned();
            let writing = self.runtime.spawn(write(file, text));
            match block_on(writing).context("a task has failed") {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => {
                    let text = sentence(&error.context(format!("cannot write {name}")));
                    console.error(&text);
                    errors.push(text);
                }
            }
        }
        errors
    }
}

/// Opens a file that is to be replaced whole.
fn create(path: &Path, runtime: &Handle) -> anyhow::Result<OutputTarget> {
    let owned = path.to_owned();
    let creating = runtime.spawn(async move { OutputTarget::create(&owned).await });
    let created = block_on(creating)?;
    created.with_context(|| format!("cannot create {}", path.display()))
}

async fn write(mut file: OutputTarget, text: String) -> anyhow::Result<()> {
    let sink = file.sink();
    sink.write_all(text.as_bytes()).await?;
    sink.flush().await?;
    Ok(file.commit(false).await?)
}

/// Draws a report that was saved with `--json`.
pub(super) fn draw(report: &Path, args: &PictureArgs, console: &Console) -> Exit {
    let document = match compare::read(report) {
        Ok(document) => document,
        Err(error) => {
            console.error(&sentence(&error));
            return Exit::Usage;
        }
    };
    let name = report.display();
    let why = if document.series.is_empty() {
        Some(format!("{name} has no measurements to draw"))
    } else if args.plot.is_some() && has_several_pairs(&document.series) {
        Some(format!(
            "--plot draws one pair of hosts, and {name} has several"
        ))
    } else {
        None
    };
    if let Some(why) = why {
        console.error(&why);
        return Exit::Usage;
    }
    let drawn = control_runtime().and_then(|runtime| PictureFiles::open(args, &runtime));
    match drawn {
        Ok(files) => match &files.write(&document, [None, None], console)[..] {
            [] => Exit::Ok,
            _ => Exit::Local,
        },
        Err(error) => {
            console.error(&sentence(&error));
            Exit::Local
        }
    }
}
