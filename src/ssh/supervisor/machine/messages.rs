//! Handles the messages of agents.

use std::time::Duration;

use super::{
    super::{Notice, edge_setup::Node, work::SupervisedWork},
    ENDING_LIMIT, Phase, SupervisorMachine,
};
use crate::ssh::{
    outcome::Site,
    protocol::{AgentReport, FaultKind, FromAgent, Payload, PayloadError, WorkFault},
};

impl<W: SupervisedWork> SupervisorMachine<W> {
    /// Handles a message of an agent. A report is the last one: what an agent sends after it is ignored.
    pub(super) fn handle_message(&mut self, now: Duration, agent: usize, message: FromAgent) {
        if self.agents[agent].has_reported {
            return;
        }
        match message {
            FromAgent::Hello(hello) => self.hello(now, agent, hello),
            FromAgent::Listening { edge, port } => self.listening(Node::Agent(agent), edge, port),
            FromAgent::Unreachable { edge, tried } => {
                self.unreachable(now, edge, Node::Agent(agent), tried);
            }
            FromAgent::Connected { edge, link } => {
                self.connected(edge, Node::Agent(agent), link);
            }
            FromAgent::Application(message) => self.application(now, agent, &message),
            FromAgent::Warning(text) => {
                let text = format!("{}: {text}", self.work.site(agent));
                self.notify(Notice::Warning(text));
            }
            FromAgent::Report(report) => self.reported(now, agent, report),
            FromAgent::Pong => {}
        }
    }

    /// Handles a message that travelled inside the envelope: one of the work itself.
    fn application(&mut self, now: Duration, agent: usize, message: &Payload) {
        match self.work.handle(agent, message) {
            Ok(notices) => {
                self.actions.extend(notices);
                self.request();
            }
            Err(error) => self.fail_undecodable(now, agent, &error),
        }
    }

    /// Tells the agents what the work has for them.
    fn request(&mut self) {
        if !self.is_ending() {
            let requests = self.work.requests();
            self.actions.extend(requests);
        }
    }

    /// Fails the run because an agent's message cannot be decoded.
    fn fail_undecodable(&mut self, now: Duration, agent: usize, error: &PayloadError) {
        let text = format!("its agent sent a message that this version cannot decode ({error})");
        self.fail(now, Site::Agent(agent), FaultKind::Local, text, true);
    }

    fn reported(&mut self, now: Duration, agent: usize, report: AgentReport) {
        let AgentReport { fault, result } = report;
        let decoded = self
            .work
            .handle_report(agent, result.as_ref(), fault.as_ref());
        self.agents[agent].has_reported = true;
        self.agents[agent].fault.clone_from(&fault);
        if let Err(error) = decoded {
            self.fail_undecodable(now, agent, &error);
        }
        let site = Site::Agent(agent);
        match fault {
            Some(fault) => {
                let is_connecting = self.phase == Phase::Connecting;
                let is_infrastructure = self.work.is_infrastructure(agent, &fault, is_connecting);
                let WorkFault { kind, text } = fault;
                self.fail(now, site, kind, text, is_infrastructure);
            }
            None if self.phase == Phase::Connecting => {
                let text = format!("it ended before the {} began", W::NOUN);
                self.fail(now, site, FaultKind::Local, text, true);
            }
            None => self.request(),
        }
        let all = self.agents.iter().all(|agent| agent.has_reported);
        if all && !self.is_ending() {
            self.phase = Phase::Ending(now + ENDING_LIMIT);
        }
    }
}
