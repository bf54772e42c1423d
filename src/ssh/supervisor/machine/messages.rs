//! Handles the messages of agents and of their stages.

use std::time::Duration;

use super::{
    super::{Notice, edge_setup::Node},
    ENDING_LIMIT, Phase, PipelineMachine, ProceedState,
};
use crate::ssh::{
    outcome::Site,
    protocol::{AgentReport, FaultKind, FromAgent, Payload, PayloadError, WorkFault},
    stage::{FromStage, StageReport},
};

impl PipelineMachine {
    /// Handles a message of an agent. A report is the last one: what an agent sends after it is ignored.
    pub(super) fn handle_message(&mut self, now: Duration, stage: usize, message: FromAgent) {
        if self.stages[stage].report.is_some() {
            return;
        }
        match message {
            FromAgent::Hello(hello) => self.hello(now, stage, hello),
            FromAgent::Listening { edge, port } => self.listening(Node::Agent(stage), edge, port),
            FromAgent::Unreachable { edge, tried } => {
                self.unreachable(now, edge, Node::Agent(stage), tried);
            }
            FromAgent::Connected { edge, link } => {
                self.connected(edge, Node::Agent(stage), link);
            }
            FromAgent::Application(message) => match message.decode() {
                Ok(message) => self.handle_stage_message(stage, message),
                Err(error) => self.fail_undecodable(now, stage, &error),
            },
            FromAgent::Warning(text) => {
                let text = format!("{}: {text}", self.plan.site(stage));
                self.notify(Notice::Warning(text));
            }
            FromAgent::Report(report) => self.reported(now, stage, report),
            FromAgent::Pong => {}
        }
    }

    /// Handles a message that travelled inside the envelope: one of the stage itself.
    fn handle_stage_message(&mut self, stage: usize, message: FromStage) {
        match message {
            FromStage::InputComplete => {
                let turn = &mut self.stages[stage].turn;
                if *turn == ProceedState::NotYet {
                    *turn = ProceedState::Waits;
                }
                self.answer();
            }
            FromStage::Ended(status) => {
                self.stages[stage].ended = Some(status);
                self.answer();
            }
            FromStage::Progress {
                bytes_in,
                bytes_out,
            } => self.stages[stage].bytes = bytes_in.max(bytes_out),
            FromStage::Unreadable { path, why } => {
                let text = format!("{}: {why}", String::from_utf8_lossy(&path));
                self.notify(Notice::Unreadable(stage, text));
            }
        }
    }

    /// Fails the pipeline because a stage's message cannot be decoded.
    fn fail_undecodable(&mut self, now: Duration, stage: usize, error: &PayloadError) {
        let text = format!("its agent sent a message that this version cannot decode ({error})");
        self.fail(now, Site::Agent(stage), FaultKind::Local, text, true);
    }

    fn reported(&mut self, now: Duration, stage: usize, report: AgentReport) {
        let AgentReport { fault, result } = report;
        let report = result.as_ref().map(Payload::decode::<StageReport>);
        let (report, undecodable) = match report.transpose() {
            Ok(report) => (report.unwrap_or_default(), None),
            Err(error) => (StageReport::default(), Some(error)),
        };
        let status = report.status;
        // After a fault the status may be that of the agent's own SIGTERM. A status that was reported before the
        // fault is the command's own.
        if fault.is_none() {
            self.stages[stage].ended = self.stages[stage].ended.or(status);
        }
        self.stages[stage].bytes = report.bytes_in.max(report.bytes_out);
        self.stages[stage].report = Some(report);
        self.stages[stage].fault.clone_from(&fault);
        if let Some(error) = undecodable {
            self.fail_undecodable(now, stage, &error);
        }
        let site = Site::Agent(stage);
        match fault {
            // Files are opened after all edges are connected: a local fault before that is a failure to connect.
            Some(WorkFault { kind, text }) => {
                let is_trouble = self.phase == Phase::Connecting && kind <= FaultKind::Edge;
                self.fail(now, site, kind, text, is_trouble);
            }
            None if self.phase == Phase::Connecting => {
                let text = "it ended before the pipeline began".to_owned();
                self.fail(now, site, FaultKind::Local, text, true);
            }
            None => self.answer(),
        }
        let all = self.stages.iter().all(|stage| stage.report.is_some());
        if all && !self.is_ending() {
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }
}
