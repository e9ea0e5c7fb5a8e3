"""The config files that tests start a service with."""

from collections.abc import Mapping, Sequence

import msgspec

CHARACTER = "You are the character layer of the tests."
MEZZO_CHARACTER = "You are the character layer of mezzo alone."
CLASSES = ("mezzo", "forte", "fortissimo")


class RouteSpec(msgspec.Struct, frozen=True):
    """One route of a class in the config file. `silence_s` is both its first-token and its idle timeout."""

    provider: str
    model: str = "loopback-large"
    order: int = 0
    silence_s: float = 60.0
    weight: int = 1
    continues: bool = False
    more_toml: str = ""

    def toml(self, class_id: str) -> str:
        timeouts = f"connect_s = 60, first_token_s = {self.silence_s}, idle_s = {self.silence_s}"
        return (
            f"[[classes.{class_id}.routes]]\n"
            f'provider = "{self.provider}"\nmodel = "{self.model}"\norder = {self.order}\n'
            f"weight = {self.weight}\ncontinue = {str(self.continues).lower()}\n"
            f"context_tokens = 1_000_000\nmax_output_tokens = 131_072\ntimeouts = {{ {timeouts} }}\n{self.more_toml}"
        )


class ServiceSpec(msgspec.Struct, frozen=True):
    """The config of a service: provider name -> address, class -> routes, further TOML, and limits.

    `provider_toml` has further lines for some providers, such as a dialect.
    """

    providers: Mapping[str, str]
    routes: Mapping[str, Sequence[RouteSpec]]
    more_toml: str = ""
    limits: Mapping[str, float | str] = {}
    provider_toml: Mapping[str, str] = {}

    def toml(self) -> str:
        limits = {"requests_per_second": 10_000.0, "burst": 10_000, "concurrency": 10_000, **self.limits}
        parts = [
            '[store]\nurl = "sqlite:///./data/cadenza.db"\n',
            "\n".join(["[limits]", *(f"{name} = {value}" for name, value in limits.items()), ""]),
            f'[character]\ntext = "{CHARACTER}"\n',
            *(
                f'[providers.{name}]\nkind = "openai"\nbase_url = "{url}"\nretention = "zero"\n'
                + self.provider_toml.get(name, "")
                for name, url in self.providers.items()
            ),
            *(route.toml(class_id) for class_id, routes in self.routes.items() for route in routes),
            self.more_toml,
        ]
        return "\n".join(parts)


def classes_spec(base_url: str) -> ServiceSpec:
    """Every class on one upstream, each with its own model name."""
    routes = {class_id: [RouteSpec("loopback", f"loopback-{class_id}")] for class_id in CLASSES}
    return ServiceSpec({"loopback": base_url}, routes)


def ordinary_spec(base_url: str) -> ServiceSpec:
    """Every class on one upstream, each with its own model name; mezzo has its own character."""
    return msgspec.structs.replace(
        classes_spec(base_url), more_toml=f'[classes.mezzo.character]\ntext = "{MEZZO_CHARACTER}"\n'
    )
