"""Google Pub/Sub's protocol, served in front of any broker.

async with Emulator() as emulator:
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address
"""

from penstock.extras import extra

with extra("emulator", "penstock.emulator"):
    from penstock.emulator.server import Emulator

__all__ = ["Emulator"]
