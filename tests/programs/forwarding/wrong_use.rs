//! Wrong command lines.

use super::tunnel::rdforward;

#[test]
fn wrong_use_gets_a_plain_sentence() {
    for (arguments, words) in [
        (&["h1"][..], "nothing to forward; give -L, -R or -D"),
        (&["-L", "80", "h1"], "there is no target after the port"),
        (&["run", "h1"], "there is no command"),
        (&["serve", "--allow", "1"], "--key-file"),
        (&["-R", "1:a:2", "h1:7"], "a server listens for no client"),
        (&["-L", "1:a:2"], "HOST"),
    ] {
        let end = rdforward(arguments).start().end();
        let said = end.exits(2);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
