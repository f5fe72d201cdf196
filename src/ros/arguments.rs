//! What is on the command line for ROS, looked at before ROS does: r2r panics where ROS refuses it.

use std::panic::{catch_unwind, set_hook, take_hook};

use super::Error;

/// Severities that `--log-level` takes, in any case.
const LEVELS: [&str; 5] = ["debug", "info", "warn", "error", "fatal"];

/// What rcl has for "as the logger above says"; nobody needs it, and nobody is refused for it.
const UNSET: &str = "unset";

/// Makes the context of ROS.
///
/// # Errors
/// When the arguments are wrong, or ROS cannot be initialised.
pub(super) fn context() -> Result<r2r::Context, Error> {
    check(std::env::args())?;
    // The panic is told as what it is: as an error.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let made = catch_unwind(r2r::Context::create);
    set_hook(hook);
    match made {
        Ok(context) => Ok(context.map_err(|source| Error::Ros { what: "ROS cannot be initialised".into(), source })?),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(refusal(text.unwrap_or_else(|| "ROS does not say why".into())))
        }
    }
}

/// What rcl says when it does not start: it parses the arguments, then starts the middleware.
fn refusal(text: String) -> Error {
    // Behind it are the places in the sources of ROS where it was noticed.
    let reason = text.split(", at ").next().unwrap_or_default().to_owned();
    if reason.contains("parse") { Error::Arguments { reason } } else { Error::Start { reason } }
}

/// Whether ROS will take the log levels.
fn check(arguments: impl IntoIterator<Item = String>) -> Result<(), Error> {
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
                if !LEVELS.contains(&&*level) && level != UNSET {
                    let expected = LEVELS.join(", ");
                    let reason = format!("--log-level: expected one of {expected}, found \"{found}\"");
                    return Err(Error::Arguments { reason });
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
    fn log_levels_that_ros_takes_pass() {
        for level in ["debug", "WARN", "Info", "magmap:=debug", "rcl:=FATAL", "unset"] {
            assert_eq!(checked(&["magmap_node", "--ros-args", "--log-level", level]), Ok(()), "{level}");
        }
        let several = ["--ros-args", "-p", "a:=b", "--log-level", "rcl:=error", "--log-level", "info"];
        assert_eq!(checked(&several), Ok(()));
    }

    #[test]
    fn others_are_refused_with_those_it_takes() {
        for level in ["chatty", "magmap:=chatty", "", "5", "warning"] {
            let refused = checked(&["magmap_node", "--ros-args", "--log-level", level]).unwrap_err();
            let expected = "wrong arguments: --log-level: expected one of debug, info, warn, error, fatal, found";
            assert_eq!(refused, format!("{expected} \"{level}\""));
        }
        assert!(checked(&["--ros-args", "--log-level"]).is_err());
    }

    #[test]
    fn what_is_not_for_ros_is_not_looked_at() {
        assert_eq!(checked(&["--log-level", "chatty"]), Ok(()));
        assert_eq!(checked(&["--ros-args", "-p", "a:=b", "--", "--log-level", "chatty"]), Ok(()));
    }

    #[test]
    fn arguments_that_ros_refuses_are_told_from_a_middleware_that_does_not_start() {
        let wrong = refusal(
            "Couldn't parse remap rule: '-r nonsense'. Error: x, at rcl/lexer.c:1, at rcl/arguments.c:2".into(),
        );
        assert!(matches!(wrong, Error::Arguments { .. }), "{wrong}");
        assert_eq!(wrong.to_string(), "wrong arguments: Couldn't parse remap rule: '-r nonsense'. Error: x");
        let broken = refusal("failed to create domain".into());
        assert!(matches!(broken, Error::Start { .. }), "{broken}");
    }
}
