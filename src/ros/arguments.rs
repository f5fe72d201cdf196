//! Checks the command line for ROS first, because r2r panics where ROS rejects it.

use std::panic::{catch_unwind, set_hook, take_hook};

use anyhow::{Context, anyhow};

use super::UsageError;

/// Severities that `--log-level` accepts, in any case; rcl also accepts `unset`, which nobody needs.
const LEVELS: [&str; 5] = ["debug", "info", "warn", "error", "fatal"];

/// Creates the context of ROS.
///
/// # Errors
/// When the arguments are wrong, or ROS cannot be initialised.
pub(super) fn context() -> anyhow::Result<r2r::Context> {
    check(std::env::args())?;
    // A panic is reported as an error.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let made = catch_unwind(r2r::Context::create);
    set_hook(hook);
    match made {
        Ok(context) => context.context("ROS cannot be initialised"),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(start_error(&text.unwrap_or_else(|| "ROS does not say why".into())))
        }
    }
}

/// The error in a message of rcl, which parses the arguments and then starts the middleware.
fn start_error(message: &str) -> anyhow::Error {
    // Behind the reason are lines in the sources of ROS.
    let reason = message.split(", at ").next().unwrap_or_default().to_owned();
    if reason.contains("parse") { wrong(&reason).into() } else { anyhow!("ROS cannot be initialised: {reason}") }
}

fn wrong(reason: &str) -> UsageError {
    UsageError(format!("wrong arguments: {reason}"))
}

/// Whether ROS will accept the log levels.
fn check(arguments: impl IntoIterator<Item = String>) -> Result<(), UsageError> {
    let mut is_for_ros = false;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--ros-args" => is_for_ros = true,
            "--" => is_for_ros = false,
            "--log-level" if is_for_ros => {
                let found = arguments.next().unwrap_or_default();
                // A logger may be named before it.
                let level = found.rsplit_once(":=").map_or(found.as_str(), |(_, level)| level).to_lowercase();
                if !LEVELS.contains(&&*level) && level != "unset" {
                    let expected = LEVELS.join(", ");
                    let reason = format!("--log-level: expected one of {expected}, found \"{found}\"");
                    return Err(wrong(&reason));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(arguments: &[&str]) -> Result<(), String> {
        check(arguments.iter().map(ToString::to_string)).map_err(|error| error.to_string())
    }

    #[test]
    fn log_levels_that_ros_accepts_pass() {
        for level in ["debug", "WARN", "Info", "magmap:=debug", "rcl:=FATAL", "unset"] {
            assert_eq!(checked(&["magmap_node", "--ros-args", "--log-level", level]), Ok(()), "{level}");
        }
        let several = ["--ros-args", "-p", "a:=b", "--log-level", "rcl:=error", "--log-level", "info"];
        assert_eq!(checked(&several), Ok(()));
    }

    #[test]
    fn other_log_levels_are_rejected_with_the_accepted_ones() {
        for level in ["chatty", "magmap:=chatty", "", "5", "warning"] {
            let rejected = checked(&["magmap_node", "--ros-args", "--log-level", level]).unwrap_err();
            let expected = "wrong arguments: --log-level: expected one of debug, info, warn, error, fatal, found";
            assert_eq!(rejected, format!("{expected} \"{level}\""));
        }
        assert!(checked(&["--ros-args", "--log-level"]).is_err());
    }

    #[test]
    fn arguments_that_are_not_for_ros_are_ignored() {
        assert_eq!(checked(&["--log-level", "chatty"]), Ok(()));
        assert_eq!(checked(&["--ros-args", "-p", "a:=b", "--", "--log-level", "chatty"]), Ok(()));
    }

    #[test]
    fn wrong_arguments_are_distinguished_from_a_middleware_that_does_not_start() {
        let wrong =
            start_error("Couldn't parse remap rule: '-r nonsense'. Error: x, at rcl/lexer.c:1, at rcl/arguments.c:2");
        assert!(wrong.is::<UsageError>(), "{wrong}");
        assert_eq!(wrong.to_string(), "wrong arguments: Couldn't parse remap rule: '-r nonsense'. Error: x");
        let broken = start_error("failed to create domain");
        assert!(!broken.is::<UsageError>(), "{broken}");
    }
}
