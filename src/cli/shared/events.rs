//! The events that the library traces, for the user of a program: warnings as messages, and with `-v` what became of
//! connections that carry no stream.

use std::{
    fmt::{self, Write as _},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::message::Console;

/// A warning with the same words is not shown again within this time: a listener without descriptors has one in each
/// pause.
const SAME_EVENT_PAUSE: Duration = Duration::from_secs(60);

/// The modules whose events of less importance are details for the user, which `-v` shows.
const DETAILS: [&str; 3] = [
    "rdpipe::transport::connect::listener",
    "rdpipe::transport::rdma::link_setup",
    "rdpipe::forward",
];

/// The module whose events the programs report themselves: what a stream uses, and why.
const REPORTED: &str = "rdpipe::transport::connect::start";

/// Shows the events of this process on `console` from now on. The first console of a process shows them.
pub(super) fn show_on(console: &Console) {
    let shown = ShownEvents {
        console: console.clone(),
        last: Mutex::new(None),
    };
    // Only a second console can fail here.
    let _ = tracing::subscriber::set_global_default(shown);
}

/// Shows events on a console.
struct ShownEvents {
    console: Console,
    /// The last warning, and when it was shown.
    last: Mutex<Option<(String, Instant)>>,
}

impl ShownEvents {
    /// Returns true if this text was not shown in the time of [`SAME_EVENT_PAUSE`] before `now`.
    fn is_new(&self, text: &str, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let again =
            matches!(&*last, Some((shown, at)) if shown == text && now - *at < SAME_EVENT_PAUSE);
        if !again {
            *last = Some((text.to_owned(), now));
        }
        !again
    }
}

impl Subscriber for ShownEvents {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_below = |module: &&str| target.starts_with(*module);
        match *metadata.level() {
            Level::ERROR | Level::WARN => target.starts_with("rdpipe") && target != REPORTED,
            _ => metadata.is_event() && DETAILS.iter().any(is_below),
        }
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        let text = text.0;
        let level = *event.metadata().level();
        if level <= Level::WARN && !self.is_new(&text, Instant::now()) {
            return;
        }
        self.console.notice(|console| match level {
            Level::ERROR => console.error(&text),
            Level::WARN => console.warn(&text),
            _ => console.detail(&text),
        });
    }

    // No span is enabled that would need more.
    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// An event as a sentence: the message, then the value of each field.
#[derive(Default)]
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let rest = std::mem::take(&mut self.0);
            self.0 = format!("{value:?}{rest}");
        } else {
            // Writing to a string does not fail.
            let _ = write!(self.0, ": {value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::MessageOptions;

    #[test]
    fn a_warning_is_shown_again_after_a_pause() {
        let events = ShownEvents {
            console: Console::new("rdrecv", MessageOptions::default()),
            last: Mutex::new(None),
        };
        let now = Instant::now();
        assert!(events.is_new("one", now));
        assert!(!events.is_new("one", now + SAME_EVENT_PAUSE / 2));
        assert!(events.is_new("one", now + SAME_EVENT_PAUSE));
        assert!(events.is_new("two", now + SAME_EVENT_PAUSE));
    }

    #[test]
    fn an_event_is_a_sentence_with_its_values() {
        struct Kept(Mutex<Vec<String>>);
        impl Subscriber for &'static Kept {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn event(&self, event: &Event<'_>) {
                let mut text = EventText::default();
                event.record(&mut text);
                self.0.lock().unwrap().push(text.0);
            }
            fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
                span::Id::from_u64(1)
            }
            fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
            fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
            fn enter(&self, _: &span::Id) {}
            fn exit(&self, _: &span::Id) {}
        }
        let kept: &'static Kept = Box::leak(Box::new(Kept(Mutex::new(Vec::new()))));
        tracing::subscriber::with_default(kept, || {
            let error = std::io::Error::from_raw_os_error(24);
            tracing::warn!(%error, "cannot accept a connection");
            tracing::debug!(address = "10.0.0.1:5", "a connection that is no stream");
        });
        assert_eq!(
            *kept.0.lock().unwrap(),
            [
                "cannot accept a connection: Too many open files (os error 24)",
                "a connection that is no stream: 10.0.0.1:5",
            ]
        );
    }
}
