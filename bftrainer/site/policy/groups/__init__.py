"""The settings of the policy, one module a group; ``model`` assembles them."""
